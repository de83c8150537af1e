//! Which tasks there are: their names towards clients, whose they are, and where they run.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use dashmap::DashMap;
use parking_lot::Mutex;
use serde_json::value::RawValue;

use super::{augmented::Augmented, shape::Times};
use countersign_protocol::{ErrorKind, McpError, rpc_error::RpcError};
use countersign_upstream::{Caller, Upstream};

/// Tasks of one principal that are remembered; beyond it the oldest is forgotten.
const MAX_TASKS: usize = 1000;

/// How long a task is remembered that names no end of its own, or a later one.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Where a task's state is kept, and in which words it is asked for.
pub enum Mode {
    /// At an upstream of its client's era.
    Same,
    /// At a stateless upstream, for a client of 2025-11-25. Holds whether that client has cancelled it.
    Extension(Mutex<bool>),
    /// At an upstream of 2025-11-25, for a stateless client: the gateway waits for its result.
    Augmented(Arc<Augmented>),
    /// Here: a client of 2025-11-25 wanted a task, and the stateless upstream answered at once.
    Done(Result<Box<RawValue>, RpcError>, Times),
}

/// One task.
pub struct Task {
    /// What its client knows it by: unguessable.
    pub alias: String,
    /// The upstream's own id.
    pub own: String,
    pub upstream: Weak<Upstream>,
    /// As whom its upstream was called: its further requests belong on the same link.
    pub caller: Caller,
    pub mode: Mode,
    made: Instant,
    ends: Instant,
}

impl Task {
    #[must_use]
    pub fn new(own: String, upstream: &Arc<Upstream>, caller: Caller, mode: Mode, ttl: Option<Duration>) -> Self {
        let made = Instant::now();
        // A little longer than the upstream keeps it: only there is the truth.
        let kept = ttl.map_or(LONGEST, |ttl| ttl.saturating_add(Duration::from_secs(60)).min(LONGEST));
        Self {
            alias: nanoid::nanoid!(32),
            own,
            upstream: Arc::downgrade(upstream),
            caller: Caller { pinned: caller.pinned.settled(), ..caller },
            mode,
            made,
            ends: made + kept,
        }
    }

    /// # Errors
    /// `UPSTREAM_UNAVAILABLE` once the upstream was taken out of the configuration.
    pub fn upstream(&self) -> Result<Arc<Upstream>, McpError> {
        self.upstream.upgrade().ok_or_else(|| {
            McpError::new(ErrorKind::UpstreamUnavailable, "the server of this task is no longer configured")
        })
    }
}

/// All tasks of upstreams that clients may ask for. In memory: after a restart their ids are unknown.
#[derive(Default)]
pub struct Tasks {
    by_alias: DashMap<String, Arc<Task>>,
}

impl Tasks {
    pub fn insert(&self, task: Task) -> Arc<Task> {
        let task = Arc::new(task);
        let now = Instant::now();
        let principal = &task.caller.principal.name;
        let mut oldest: Option<(Instant, String)> = None;
        let mut count = 0;
        // Making a task is rare, and always a call to an upstream.
        self.by_alias.retain(|_, other| {
            if other.ends > now && other.caller.principal.name == *principal {
                count += 1;
                if oldest.as_ref().is_none_or(|(made, _)| other.made < *made) {
                    oldest = Some((other.made, other.alias.clone()));
                }
            }
            other.ends > now
        });
        if count >= MAX_TASKS
            && let Some((_, alias)) = oldest
        {
            self.by_alias.remove(&alias);
        }
        self.by_alias.insert(task.alias.clone(), Arc::clone(&task));
        task
    }

    /// A task of that principal.
    ///
    /// # Errors
    /// `-32602` for any other, as for one that does not exist.
    pub fn of(&self, principal: &str, alias: &str) -> Result<Arc<Task>, McpError> {
        let task = self.by_alias.get(alias).map(|task| Arc::clone(&task));
        task.filter(|task| task.caller.principal.name == principal && task.ends > Instant::now()).ok_or_else(|| {
            let shown: String = alias.chars().take(128).collect();
            McpError::new(ErrorKind::InvalidParams, "Task not found").with("taskId", shown)
        })
    }

    /// Nobody will ask for it.
    pub fn forget(&self, alias: &str) {
        self.by_alias.remove(alias);
    }

    /// What a principal has, oldest first.
    #[must_use]
    pub fn all_of(&self, principal: &str) -> Vec<Arc<Task>> {
        let now = Instant::now();
        let mine = self.by_alias.iter().filter(|task| task.caller.principal.name == principal && task.ends > now);
        let mut mine: Vec<_> = mine.map(|task| Arc::clone(&task)).collect();
        mine.sort_by(|a, b| (a.made, &a.alias).cmp(&(b.made, &b.alias)));
        mine
    }
}
