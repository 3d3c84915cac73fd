"""What may be asked of the server, whatever the protocol: inference, management, and the rights to both.

Each protocol translates its requests to the vocabulary of `stubserve.inference` and back. A usual request is read by a
pass that expects nothing unusual. Where that pass meets something else it says no more than that, and the general code
reads the request again, which knows upstream's order and upstream's words. So each text has one place, and tests feed
both with the same requests. The body of a request that its head alone condemns is read past and not kept, and the
connection goes on.
"""
