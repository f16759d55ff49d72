"""
`agentzip bench report`: the benches of a preset, one after the other, and one document of them all.

What runs and what is shown are apart: a run leaves the JSON object of each command in a folder,
and the document is made from that folder, as often as somebody likes.

    presets.py    which commands each preset runs: data
    claims.py     what others have published: data
    running.py    runs the commands and keeps what they said
    kept.py       the folder that a run leaves
    facts.py      machine and commit
    tables.py     results to tables: pure
    gains.py      two ways to count what a host gained, and their difference: pure
    gaps.py       what was not measured, and why: pure
    plots.py      results to pictures
    chapters.py   tables and pictures in their order, section by section
    blocks.py     what a document is made of
    html.py       a document as one HTML file
    markdown.py   a document as Markdown, the pictures beside it
    making.py     all of it in one call
"""

__all__: list[str] = []
