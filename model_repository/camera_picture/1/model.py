import base64

import cv2
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PICTURE", picture_of(request))]) for request in requests]


def picture_of(request):
    frame = pb_utils.get_input_tensor_by_name(request, "FRAME").as_numpy()
    _, file = cv2.imencode(".jpg", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 85])
    return np.array([base64.b64encode(file)], np.object_)
