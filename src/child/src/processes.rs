//! Finds the descendants of this process (proc_pid_stat(5)) and signals them.

use std::{
    collections::{HashMap, HashSet},
    fs,
};

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
#[cfg(target_os = "linux")]
use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};

/// Maximum number of scans in one call of [`signal_descendants`]. A process forked during a scan is found by the next one.
const MAX_SCANS: usize = 20;

/// The relevant fields of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    /// The start time in clock ticks since boot. Together with the process id, it identifies a process uniquely.
    start_ticks: u64,
    /// The process has ended and waits to be reaped.
    has_ended: bool,
}

/// The id and the start time of a process, which together identify it.
pub(crate) type ProcessIdentity = (Pid, u64);

/// Sends signals to every living descendant of this process, whatever its group and session, and returns them. Without
/// `/proc`, it signals the process group `group`.
///
/// Best effort: processes that keep forking may be missed, so callers that must be sure call it again.
pub(crate) fn signal_descendants(group: Pid, signals: &[Signal]) -> HashSet<ProcessIdentity> {
    let mut signalled = HashSet::new();
    for _ in 0..MAX_SCANS {
        let Some(processes) = find_descendants(getpid()) else {
            for signal in signals {
                let _ = kill_process_group(group, *signal);
            }
            break;
        };
        let before = signalled.len();
        for (pid, start_ticks) in processes {
            if signalled.insert((pid, start_ticks)) {
                send_signals(pid, start_ticks, signals);
            }
        }
        if signalled.len() == before {
            break;
        }
    }
    signalled
}

/// Sends signals to a process if it is still the one with that start time.
fn send_signals(pid: Pid, start_ticks: u64, signals: &[Signal]) {
    // The descriptor refers to one process, and the second check verifies that it is the right one.
    #[cfg(target_os = "linux")]
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            if read_start_ticks(pid) == Some(start_ticks) {
                for signal in signals {
                    let _ = pidfd_send_signal(&process, *signal);
                }
            }
            return;
        }
        Err(rustix::io::Errno::SRCH) => return,
        // Some kernels and sandboxes have no pidfds.
        Err(_) => {}
    }
    if read_start_ticks(pid) == Some(start_ticks) {
        for signal in signals {
            let _ = kill_process(pid, *signal);
        }
    }
}

/// Returns the start time of a process, if it exists.
pub(crate) fn read_start_ticks(pid: Pid) -> Option<u64> {
    read_stat(pid.as_raw_nonzero().get()).map(|stat| stat.start_ticks)
}

/// Returns all living descendants of a process, or `None` if the system does not list them.
fn find_descendants(root: Pid) -> Option<Vec<ProcessIdentity>> {
    let root = root.as_raw_nonzero().get();
    read_stat(root)?;
    let entries = fs::read_dir("/proc").ok()?;
    let mut by_parent: HashMap<i32, Vec<(i32, Stat)>> = HashMap::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(stat) = read_stat(pid) {
            by_parent.entry(stat.parent).or_default().push((pid, stat));
        }
    }
    let mut living = Vec::new();
    let mut pending = vec![root];
    while let Some(parent) = pending.pop() {
        // Removed, so that a tree that changed while it was read cannot lead to a cycle.
        for (pid, stat) in by_parent.remove(&parent).unwrap_or_default() {
            pending.push(pid);
            if !stat.has_ended
                && let Some(pid) = Pid::from_raw(pid)
            {
                living.push((pid, stat.start_ticks));
            }
        }
    }
    Some(living)
}

fn read_stat(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a stat file. The program's name is in parentheses, may contain any character and need not be UTF-8.
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let after = memchr::memrchr(b')', stat)? + 1;
    let mut fields = std::str::from_utf8(&stat[after..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // State is field 3 and starttime field 22.
    let start_ticks = fields.nth(17)?.parse().ok()?;
    Some(Stat { parent, start_ticks, has_ended: matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_parsed_with_any_program_name() {
        let rest = "S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1000 10";
        for name in ["sh", "a) R 1", "x ) (", ""] {
            let stat = parse_stat(format!("123 ({name}) {rest}\n").as_bytes()).unwrap();
            assert_eq!(stat, Stat { parent: 7, start_ticks: 4242, has_ended: false }, "{name}");
        }
        assert!(parse_stat(b"1 (\xff\xfe) Z 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1").unwrap().has_ended);
        for broken in ["", "1 (x", "1 (x) S", "1 (x) S a b c"] {
            assert_eq!(parse_stat(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn descendants_include_grandchildren() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let (grandchild, start_ticks) = loop {
            let found = find_descendants(pid).unwrap();
            if !found.is_empty() {
                break found[0];
            }
            std::thread::yield_now();
        };
        assert!(find_descendants(getpid()).unwrap().iter().any(|(found, _)| *found == pid));
        // Another start time means another process.
        send_signals(grandchild, start_ticks + 1, &[Signal::KILL]);
        assert_eq!(read_start_ticks(grandchild), Some(start_ticks));
        send_signals(grandchild, start_ticks, &[Signal::KILL]);
        child.wait().unwrap();
        assert_eq!(find_descendants(pid), None);
    }
}
