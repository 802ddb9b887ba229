"""A hook of MkDocs: a link to a file outside of docs/ leads nowhere on the site, so it becomes the file's name."""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]\n]+)\]\(((?:\.\./)+[^)\s#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """MkDocs calls this for each page before it is rendered."""
    depth = page.file.src_uri.count("/")

    def instead(link: re.Match[str]) -> str:
        text, target = link.groups()
        return f"{text} (`{target[3 * (depth + 1) :]}`)" if target.count("../") > depth else link.group(0)

    return OUTSIDE.sub(instead, markdown)
