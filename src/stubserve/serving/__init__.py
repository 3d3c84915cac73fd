"""The heart of serving: how a loaded model version gets its requests to instances and their answers back.

`instance_model` is what the rest of the server sees (`inference.served_model.ServedModel`). Its parts:

- `dispatcher`: asks the scheduler what to do now, and has instances do it;
- `delivery`: passes answers on, in order where the model wants it, and counts them;
- `instance_set`: which instances serve the version, which are retired, and whether they are ready;
- `draining`: knows when nothing is under way any more;
- `answering`: what it shares with ensembles of that;
- `alarm`: wakes the dispatcher in time.

The response cache (`caching`), the rate limiter (`limited_dispatcher`), warm-up (`warm_up`) and sleep (`sleep`) stand
around the scheduler, which knows nothing of them.
"""
