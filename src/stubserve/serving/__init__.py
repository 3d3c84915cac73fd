"""The heart of serving: how a loaded model version sends requests to instances and answers to clients.

The rest of the server sees `instance_model` (`inference.served_model.ServedModel`). Its parts:

- `stages`: what a request passes, in order;
- `dispatcher`: asks the scheduler what to do now, and makes instances do it;
- `delivery`: passes answers on, in order where the model wants it, counts them, and knows when none is left;
- `model_instances`: the instances that serve the version, sleep or are retired, and their readiness;
- `answering`: the part that ensembles share;
- `alarm`: wakes the dispatcher in time.

The response cache, the rate limiter, warm-up (`warm_up`) and sleep stand around the scheduler. It knows none of them.
"""
