"""
The exception tree.

    AgentZipError
    ├── InvalidSetting        a value is out of range (also a ValueError)
    ├── NoSuchProcess         (also a ProcessLookupError)
    ├── PidReused             the pid now names another process (also a ProcessLookupError)
    ├── TargetGone            it exited or exec'ed meanwhile (also a ProcessLookupError)
    ├── NotPermitted          (also a PermissionError)
    ├── AlreadyTraced         a debugger or tracer is on it
    ├── OwnProcess            it is AgentZip itself
    ├── KernelThread          it has no user memory
    ├── WrongArchitecture     it is not a 64-bit process of this machine's kind
    ├── AlreadyAttached
    ├── NotAttached
    ├── TargetBusy            no thread could be borrowed within the stop limit
    ├── Unsupported           the kernel lacks a feature
    ├── AlreadyRunning        another engine owns the run directory
    ├── IncompatibleState     a keeper holds a state format this version does not know
    ├── NotEnoughMemory       too little memory to bring pages home
    ├── TargetsRemain         an engine cannot close while it manages targets
    ├── DaemonUnreachable     no daemon answers on the socket
    ├── TrimRefused           a sandbox offers no trim, or its offer is not trusted
    ├── NoSuchSandbox         no managed sandbox has this name
    ├── NoSuchScope           no scope has this pattern
    ├── DictionaryRefused     a trained dictionary holds traces of the machine, or does not pay
    └── InternalError         a bug; please report it

The Rust core raises exactly these, by name; nothing else crosses the seam.
Each carries the exit code that the command line ends with and a hint for the operator.
"""

__all__ = [
    "AgentZipError",
    "AlreadyAttached",
    "AlreadyRunning",
    "AlreadyTraced",
    "DaemonUnreachable",
    "DictionaryRefused",
    "IncompatibleState",
    "InternalError",
    "InvalidSetting",
    "KernelThread",
    "NoSuchProcess",
    "NoSuchSandbox",
    "NoSuchScope",
    "NotAttached",
    "NotEnoughMemory",
    "NotPermitted",
    "OwnProcess",
    "PidReused",
    "TargetBusy",
    "TargetGone",
    "TargetsRemain",
    "TrimRefused",
    "Unsupported",
    "WrongArchitecture",
]


class AgentZipError(Exception):
    """Base of all errors of this package."""

    exit_code: int = 70
    hint: str = ""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint


class InvalidSetting(AgentZipError, ValueError):
    """A value is out of its range."""

    exit_code = 2


class NoSuchProcess(AgentZipError, ProcessLookupError):
    """No process has this pid."""

    exit_code = 3
    hint = (
        "list processes with `ps`; the pid must be that of a process, seen from this pid namespace"
    )


class NotPermitted(AgentZipError, PermissionError):
    """The kernel refused access to the target or to a device."""

    exit_code = 4
    hint = "run as root (CAP_SYS_PTRACE and CAP_SYS_ADMIN); `agentzip doctor` names what is missing"


class AlreadyTraced(AgentZipError):
    """Another tracer (a debugger, strace) is attached to the target."""

    exit_code = 5
    hint = "end the other tracer first; one process can have only one"


class OwnProcess(AgentZipError):
    """The target is AgentZip itself or one of its helpers."""

    exit_code = 6
    hint = "the pager cannot serve faults of its own memory; name another process"


class KernelThread(AgentZipError):
    """The target is a kernel thread and has no user memory."""

    exit_code = 7
    hint = "name a user process"


class WrongArchitecture(AgentZipError):
    """The target is not a 64-bit x86-64 process."""

    exit_code = 8
    hint = "32-bit programs and other architectures are not supported yet"


class Unsupported(AgentZipError):
    """The running kernel lacks a feature that the pager needs."""

    exit_code = 9
    hint = "Linux 6.9 with CONFIG_USERFAULTFD is needed; `agentzip doctor` lists every feature"


class TargetGone(AgentZipError, ProcessLookupError):
    """The target exited or replaced itself by exec during the operation."""

    exit_code = 11


class TargetBusy(AgentZipError):
    """No thread of the target could be borrowed within the stop limit."""

    exit_code = 12
    hint = "try again; a thread in an uninterruptible system call cannot be borrowed"


class NotAttached(AgentZipError):
    """The process is not managed by this daemon."""

    exit_code = 13
    hint = "attach it first: `agentzip attach PID`"


class AlreadyAttached(AgentZipError):
    """The process is managed already."""

    exit_code = 14


class NotEnoughMemory(AgentZipError):
    """Memory is too short to bring every page home."""

    exit_code = 15
    hint = "free memory and run the command again; nothing was lost, the target is served"


class PidReused(AgentZipError, ProcessLookupError):
    """The pid now belongs to another process."""

    exit_code = 16


class DaemonUnreachable(AgentZipError):
    """No daemon answers on the control socket."""

    exit_code = 17
    hint = "start `agentzip daemon`, or use `agentzip run` or `attach`, which bring their own"


class AlreadyRunning(AgentZipError):
    """Another engine owns the run directory."""

    exit_code = 18
    hint = "use the running daemon, or give another --run-dir"


class IncompatibleState(AgentZipError):
    """A keeper holds state of a format that this version does not know."""

    exit_code = 19
    hint = "start the version that made it, detach everything, then upgrade"


class TargetsRemain(AgentZipError):
    """An engine cannot close while it still manages targets."""

    exit_code = 20


class TrimRefused(AgentZipError):
    """A sandbox offers no trim, or its offer is not trusted."""

    exit_code = 21
    hint = "the sandbox agrees by serving the socket that AGENTZIP_TRIM_SOCKET names (docs/trim.md)"


class DictionaryRefused(AgentZipError):
    """A trained dictionary holds traces of this machine, or does not pay."""

    exit_code = 22


class NoSuchSandbox(AgentZipError, LookupError):
    """No managed sandbox has this name."""

    exit_code = 23
    hint = "`agentzip status` lists the sandboxes; `agentzip scope list` what selects them"


class NoSuchScope(AgentZipError, LookupError):
    """No scope has this pattern."""

    exit_code = 24
    hint = "`agentzip scope list` shows every scope with its pattern"


class InternalError(AgentZipError):
    """A broken assumption inside AgentZip."""

    exit_code = 70
    hint = "this is a bug; please report it with the message above"
