"""Request a token with client credentials, and report the endpoint's refusal."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import anyio

from aioidem import Producer
from aioidem.broker import BrokerSecurity, EmbeddedCluster
from aioidem.errors import AuthenticationFailedError


class Provider(BaseHTTPRequestHandler):
    """A token endpoint that refuses every client."""

    def do_POST(self) -> None:
        """Answer that the client is unknown."""
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"error": "invalid_client"}'
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


async def main(port: int) -> None:
    """Request a token from the endpoint, which must fail."""
    security = BrokerSecurity(mechanisms=("OAUTHBEARER",))
    async with EmbeddedCluster(security=security) as cluster:
        producer = Producer(
            cluster.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_allow_plaintext=True,
            sasl_oauthbearer_token_endpoint_url=f"http://127.0.0.1:{port}/token",
            sasl_oauthbearer_client_id="me",
            sasl_oauthbearer_client_secret="no secret",
        )
        try:
            await producer.start()
        except AuthenticationFailedError as error:
            if "invalid_client" in str(error):
                return
        raise SystemExit("the provider's refusal was not understood")


with HTTPServer(("127.0.0.1", 0), Provider) as server:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        anyio.run(main, server.server_port)
    finally:
        server.shutdown()
        thread.join()
