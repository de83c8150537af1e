//! Which processes descend from this one (proc_pid_stat(5)), and signals to all of them.

use std::{
    collections::{HashMap, HashSet},
    fs,
};

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
#[cfg(target_os = "linux")]
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

/// How often the processes are looked at in one round: what was forked during one look is seen by the next.
const LOOKS: usize = 20;

/// What matters of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    /// In clock ticks since boot: with the id it names one process for good.
    since: u64,
    /// It has ended and only waits to be reaped.
    dead: bool,
}

/// Sends a signal to every living descendant of this process, whatever its group and session, and says which those
/// were. `group`: what it started first, all that is known where there is no `/proc`.
///
/// Best effort: what forks all the time may be missed, so whoever must be sure calls it again.
pub(crate) fn signal_descendants(group: Pid, signal: Signal) -> HashSet<(Pid, u64)> {
    let mut signalled = HashSet::new();
    for _ in 0..LOOKS {
        let Some(found) = descendants(getpid()) else {
            let _ = kill_process_group(group, signal);
            break;
        };
        let before = signalled.len();
        for (pid, since) in found {
            if signalled.insert((pid, since)) {
                send(pid, since, signal);
            }
        }
        if signalled.len() == before {
            break;
        }
    }
    signalled
}

/// Sends a signal to that process if it still is the one that was started then.
fn send(pid: Pid, since: u64, signal: Signal) {
    // The descriptor keeps its process; the second look tells whether it is the one that was meant.
    #[cfg(target_os = "linux")]
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            if started(pid) == Some(since) {
                let _ = pidfd_send_signal(&process, signal);
            }
            return;
        }
        Err(rustix::io::Errno::SRCH) => return,
        // Kernels and sandboxes without them.
        Err(_) => {}
    }
    if started(pid) == Some(since) {
        let _ = kill_process(pid, signal);
    }
}

/// When that process started, if it exists.
pub(crate) fn started(pid: Pid) -> Option<u64> {
    stat(pid.as_raw_nonzero().get()).map(|stat| stat.since)
}

/// All living descendants of a process; `None` where the system does not tell.
fn descendants(of: Pid) -> Option<Vec<(Pid, u64)>> {
    let of = of.as_raw_nonzero().get();
    stat(of)?;
    let entries = fs::read_dir("/proc").ok()?;
    let mut all: HashMap<i32, Vec<(i32, Stat)>> = HashMap::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(stat) = stat(pid) {
            all.entry(stat.parent).or_default().push((pid, stat));
        }
    }
    let mut found = Vec::new();
    let mut open = vec![of];
    while let Some(parent) = open.pop() {
        // Removed, so that no tree that changed while it was read can lead in a circle.
        for (pid, stat) in all.remove(&parent).unwrap_or_default() {
            open.push(pid);
            if !stat.dead
                && let Some(pid) = Pid::from_raw(pid)
            {
                found.push((pid, stat.since));
            }
        }
    }
    Some(found)
}

fn stat(pid: i32) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The program's name stands in parentheses, may be anything and need not be UTF-8.
fn parse(stat: &[u8]) -> Option<Stat> {
    let after = memchr::memrchr(b')', stat)? + 1;
    let mut fields = std::str::from_utf8(&stat[after..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // State is field 3 and starttime field 22.
    let since = fields.nth(17)?.parse().ok()?;
    Some(Stat { parent, since, dead: matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_parsed_with_any_program_name() {
        let rest = "S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1000 10";
        for name in ["sh", "a) R 1", "x ) (", ""] {
            let stat = parse(format!("123 ({name}) {rest}\n").as_bytes()).unwrap();
            assert_eq!(stat, Stat { parent: 7, since: 4242, dead: false }, "{name}");
        }
        assert!(parse(b"1 (\xff\xfe) Z 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1").unwrap().dead);
        for broken in ["", "1 (x", "1 (x) S", "1 (x) S a b c"] {
            assert_eq!(parse(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn descendants_include_grandchildren() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let below = loop {
            let below = descendants(pid).unwrap();
            if !below.is_empty() {
                break below;
            }
            std::thread::yield_now();
        };
        assert!(descendants(getpid()).unwrap().iter().any(|(found, _)| *found == pid));
        // Another start time is another process.
        send(below[0].0, below[0].1 + 1, Signal::KILL);
        assert_eq!(started(below[0].0), Some(below[0].1));
        send(below[0].0, below[0].1, Signal::KILL);
        child.wait().unwrap();
        assert_eq!(descendants(pid), None);
    }
}
