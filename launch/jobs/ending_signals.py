"""The signals that end a job."""

import signal


def ending_signals() -> set[signal.Signals]:
    """Returns the signals that end a job. SIGHUP is not one of them if it is ignored: `nohup` starts programs so."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return {signal.SIGINT, signal.SIGTERM} | (set() if ignores_hangup else {signal.SIGHUP})
