from __future__ import annotations

from stubserve_stub.backends.card import Card, ModelFile

# Triton's name and file. stubserve has no such backend.
CARDS = (Card("openvino", files=(ModelFile("model.xml"),)),)
