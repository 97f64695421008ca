"""The page at /, and its files."""

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

STATIC = Path(__file__).parents[1] / "static"
# Nothing from elsewhere, and nothing inline: what a model writes cannot become code.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

router = APIRouter()
static = StaticFiles(directory=STATIC)


@router.get("/", include_in_schema=False)
async def page() -> FileResponse:
    return FileResponse(STATIC / "index.html", headers={"Content-Security-Policy": POLICY})
