"""The server: OpenAI's API over engines, a page to look at them, metrics.

Needs the extra `serve`: pip install 'gossamer[serve]'.
"""

from gossamer.server.app import create_app
from gossamer.server.gateway import Gateway
from gossamer.server.settings import Limits, Settings

__all__ = ["Gateway", "Limits", "Settings", "create_app"]
