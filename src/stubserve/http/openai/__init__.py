"""OpenAI's routes (`--openai`): a translation in front of `generate` and `generate_stream`.

`body` reads what a client asks, `model_requests` makes of it what `generate` would get, `call` asks the model, `texts`,
`objects` and `vectors` make OpenAI's JSON of its responses, and `routes` has the handlers.
"""
