"""How models come to be served, and cease to be: loads, unloads, takeovers.

All versions of a model are loaded, or none: where one fails, those that did load are taken down again, as with
upstream. `control` is what clients, models and the watch of a repository ask; `loader` starts versions; `changeover`
puts them in the place of those that serve.
"""
