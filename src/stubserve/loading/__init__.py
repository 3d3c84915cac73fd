"""How models are loaded, unloaded and replaced.

All versions of a model are loaded, or none: if one fails, the loaded ones are taken down again, as with upstream.
`control` takes the requests of clients, models and the watch of a repository; `loader` starts versions; `changeover`
puts them in the place of those that serve.
"""
