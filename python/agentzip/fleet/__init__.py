"""
The sandboxes of a host through their lives: found, watched, planned for, acted on.

    registry    scopes and control groups to sandboxes with their processes
    scopes      what selects sandboxes: the file, and what commands added
"""
