"""What clients may ask of the server over any protocol: inference, management, and the rights to both.

Each protocol translates its requests to the vocabulary of `stubserve.inference` and back. A usual request is read by a
pass that expects nothing unusual. If that pass meets anything else it only says so, and the general code reads the
request again, with upstream's order of checks and upstream's texts. So each text has one place, and tests feed both
with the same requests. If a request fails by its head alone, its body is read but not kept, and the connection goes on.
"""
