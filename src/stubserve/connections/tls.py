"""TLS for a listening socket, with certificates that may be exchanged while the server runs.

Each handshake looks whether the files have changed, at most once a second, and uses the current files. Files that
cannot be used (for instance a certificate whose key is not written yet) only cause a line in the log, and are tried
again when the files change again. Open connections stay as they are.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from pathlib import Path

from stubserve.connections.changing_files import ChangingFiles
from stubserve.settings.fronts import Tls

log = logging.getLogger("stubserve.server")


def tls_context(tls: Tls, protocols: Sequence[str]) -> ssl.SSLContext:
    """The context for a server, with ALPN's `protocols`. Raises OSError that names the file which cannot be used."""
    context = current = _context(tls, protocols)
    files = ChangingFiles(tls.files)

    def choose(connection: ssl.SSLObject, host: str | None, _: ssl.SSLContext) -> None:
        """Called in each handshake; the `host` that the client wants does not matter here."""
        nonlocal current
        if files.changed():
            try:
                current = _context(tls, protocols)
            except OSError as error:
                log.error("the certificate stays as it was: %s", error)
            else:
                log.info("read the certificate %s again", tls.certificate)
        if current is not context:
            connection.context = current

    context.sni_callback = choose
    return context


def _context(tls: Tls, protocols: Sequence[str]) -> ssl.SSLContext:
    tls.check()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(list(protocols))
    try:
        # Without a given passphrase OpenSSL would ask for one on the terminal.
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except ssl.SSLError as error:
        raise _explained(error, tls) from None
    if tls.root_certificates:
        try:
            context.load_verify_locations(tls.root_certificates)
        except ssl.SSLError as error:
            raise OSError(error.errno, f"no certificates in PEM ({error.reason})", tls.root_certificates) from None
    if tls.mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _explained(error: ssl.SSLError, tls: Tls) -> OSError:
    """The error for the file of the two that cannot be used, with the reason."""
    key = Path(tls.key).read_bytes()
    reason = f" ({error.reason})" if error.reason else ""
    if b"ENCRYPTED" in key:
        return OSError(error.errno, "the private key is encrypted; the server needs an unencrypted key", tls.key)
    if b"PRIVATE KEY-----" not in key:
        return OSError(error.errno, f"there is no private key in PEM{reason}", tls.key)
    if b"-----BEGIN CERTIFICATE-----" not in Path(tls.certificate).read_bytes():
        return OSError(error.errno, f"there is no certificate in PEM{reason}", tls.certificate)
    text = f"the certificate and the private key {tls.key} cannot be used together{reason}"
    return OSError(error.errno, text, tls.certificate)
