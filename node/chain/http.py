"""HTTP clients as the environment wants them: its proxies, but never for this machine, and its certificates.

What is read: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY (also in small letters; SOCKS as socks5:// and socks5h://),
SSL_CERT_FILE and SSL_CERT_DIR. Members of a pool are dialled without a proxy.
"""

import ipaddress
import os
import ssl
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from node.chain.errors import ChainError

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class EnvironmentUnusable(ChainError):
    """A variable of the environment names a proxy or certificates that cannot be used."""


@cache
def certificates() -> ssl.SSLContext:
    """Whom to trust behind https://. Read once: that takes as long as dozens of requests. Raises
    EnvironmentUnusable."""
    named = [f"{name}={os.environ[name]}" for name in CERTIFICATES if os.environ.get(name)]
    try:
        context = httpx.create_ssl_context()
    except OSError as error:  # ssl.SSLError is one; its words name neither file nor cause
        why = error.strerror if isinstance(error, FileNotFoundError) else "it holds no certificates in PEM form"
        raise EnvironmentUnusable(
            "the certificates for https cannot be read",
            f"{' and '.join(named) or 'the ones that came with the program'}: {why}",
            "correct the variable, or unset it: the program brings certificates of its own",
        ) from error
    return context


def is_here(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def client_for(url: str, **options: Any) -> httpx.Client:
    """A client for one place: without a proxy where that is this machine. options: httpx's. Raises
    EnvironmentUnusable."""
    parts = urlsplit(url)
    here = is_here(parts.hostname or "")
    # A plain address may lead on to one with https.
    trusted = certificates() if parts.scheme == "https" or options.get("follow_redirects") else False
    try:
        return httpx.Client(verify=trusted, trust_env=not here, **options)
    except ImportError as error:
        why = "ALL_PROXY, HTTP_PROXY or HTTPS_PROXY names a SOCKS proxy, and the package socksio is not installed"
        raise EnvironmentUnusable("the proxy cannot be used", why, "install it: pip install 'httpx[socks]'") from error
    except (ValueError, httpx.InvalidURL) as error:
        why = f"ALL_PROXY, HTTP_PROXY or HTTPS_PROXY: {str(error)[:200]}"
        raise EnvironmentUnusable("the proxy cannot be used", why, "write it as http://HOST:PORT") from error
