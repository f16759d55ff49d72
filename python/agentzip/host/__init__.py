"""
The door to the host: the only package that opens files of `/proc`, `/sys` and `/dev`.

`memory` reads sizes, `processes` reads the process tree, `pages` reads the content of another
process for verification, `doctor` says whether this host can run the pager.
"""
