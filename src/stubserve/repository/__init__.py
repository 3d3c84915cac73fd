"""Where models lie, and how they come to be served: folders on disk and in the cloud, loads, unloads, and the registry.

All versions of a model are loaded, or none: where one fails, those that did load are taken down again, as with
upstream. `checking` makes the checks of a load without serving, and refuses the same things in the same words.
"""
