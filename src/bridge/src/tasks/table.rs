//! Which tasks there are: their names towards clients, whose they are, and where they run.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use dashmap::DashMap;
use parking_lot::Mutex;
use serde_json::value::RawValue;

use super::awaited_task::AwaitedTask;
use crate::translation::task_shape::Times;
use countersign_protocol::{ErrorKind, McpError, rpc_error::RpcError};
use countersign_upstream::{Caller, Upstream};

/// Tasks of one principal that are remembered; beyond it the oldest is forgotten.
const MAX_TASKS: usize = 1000;

/// The longest time that a task is remembered, also if it names no end of its own.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// The place where a task's state is kept, which decides how it is requested.
pub enum Mode {
    /// At an upstream of its client's era.
    Same,
    /// At a stateless upstream, for a client of 2025-11-25. Holds whether that client has cancelled it.
    Extension(Mutex<bool>),
    /// At an upstream of 2025-11-25, for a stateless client: the gateway waits for its result.
    AwaitedTask(Arc<AwaitedTask>),
    /// Here: a client of 2025-11-25 wanted a task, and the stateless upstream answered at once.
    Done(Result<Box<RawValue>, RpcError>, Times),
}

/// One task.
pub struct Task {
    /// The id that the client uses, which cannot be guessed. If there are several gateways, it begins with this one's
    /// name and a dot.
    pub alias: String,
    /// The upstream's own id.
    pub own: String,
    pub upstream: Weak<Upstream>,
    /// The caller of the upstream. Further requests about the task use the same link.
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
            alias: nanoid::nanoid!(32, &nanoid::alphabet::SAFE[2..]),
            own,
            upstream: Arc::downgrade(upstream),
            caller: Caller { link_choice: caller.link_choice.for_follow_up(), ..caller },
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
    /// This gateway, where there may be several.
    node: Option<String>,
    by_alias: DashMap<String, Arc<Task>>,
}

impl Tasks {
    #[must_use]
    pub fn new(node: Option<String>) -> Self {
        Self { node, by_alias: DashMap::new() }
    }

    pub fn insert(&self, mut task: Task) -> Arc<Task> {
        if let Some(node) = &self.node {
            task.alias.insert(0, '.');
            task.alias.insert_str(0, node);
        }
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
    pub fn find(&self, principal: &str, alias: &str) -> Result<Arc<Task>, McpError> {
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

    /// Returns the tasks of a principal, oldest first.
    #[must_use]
    pub fn all_of(&self, principal: &str) -> Vec<Arc<Task>> {
        let now = Instant::now();
        let mine = self.by_alias.iter().filter(|task| task.caller.principal.name == principal && task.ends > now);
        let mut mine: Vec<_> = mine.map(|task| Arc::clone(&task)).collect();
        mine.sort_by(|a, b| (a.made, &a.alias).cmp(&(b.made, &b.alias)));
        mine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_config::{UpstreamConfig, UpstreamTarget};
    use countersign_domain::principal::Principal;
    use countersign_protocol::{Revision, capabilities::ClientCapabilities};
    use countersign_upstream::{
        Catalog, LinkChoice,
        testing::{disconnected_upstream, negotiated},
    };

    fn upstream() -> Arc<Upstream> {
        let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
        disconnected_upstream(UpstreamConfig::new("s", target), negotiated(Revision::V2025_11_25), Catalog::default())
    }

    fn task(upstream: &Arc<Upstream>, principal: &str, ttl: Option<Duration>) -> Task {
        let caller = Caller {
            principal: Arc::new(Principal { name: principal.into(), ..Principal::local_agent() }),
            session: None,
            capabilities: ClientCapabilities::default(),
            stateless: false,
            log_level: None,
            link_choice: LinkChoice::default(),
        };
        Task::new("own".into(), upstream, caller, Mode::Same, ttl)
    }

    #[test]
    fn a_task_is_its_principals_under_a_name_that_its_server_does_not_know() {
        let (tasks, upstream) = (Tasks::default(), upstream());
        let (first, second) = (tasks.insert(task(&upstream, "ann", None)), tasks.insert(task(&upstream, "ann", None)));
        assert!(first.alias != second.alias && first.alias != "own" && first.alias.len() == 32);
        let aliases = (0..100).map(|_| task(&upstream, "ann", None).alias);
        assert!(
            aliases.flat_map(String::into_bytes).all(|byte| byte.is_ascii_alphanumeric()),
            "selected by a double click"
        );
        assert!(tasks.find("ann", &first.alias).is_ok());
        let (foreign, unknown) = (tasks.find("bob", &first.alias), tasks.find("ann", "none"));
        let said = |error: McpError| (error.kind, error.message.to_string());
        assert_eq!(said(foreign.err().unwrap()), said(unknown.err().unwrap()), "nobody learns that there is one");
        assert!(tasks.find("ann", "own").is_err());
        let names = tasks.all_of("ann").iter().map(|task| task.alias.clone()).collect::<Vec<_>>();
        assert_eq!((names, tasks.all_of("bob").len()), (vec![first.alias.clone(), second.alias.clone()], 0));
        tasks.forget(&first.alias);
        assert!(tasks.find("ann", &first.alias).is_err());
    }

    #[test]
    fn beside_other_gateways_a_task_says_where_it_is_known() {
        let (tasks, upstream) = (Tasks::new(Some("a".into())), upstream());
        let task = tasks.insert(task(&upstream, "ann", None));
        assert_eq!(task.alias.split_once('.').map(|(node, rest)| (node, rest.len())), Some(("a", 32)));
        assert!(tasks.find("ann", &task.alias).is_ok());
    }

    #[test]
    fn one_too_many_ends_the_oldest_of_its_principal() {
        let (tasks, upstream) = (Tasks::default(), upstream());
        let bobs = tasks.insert(task(&upstream, "bob", None));
        let oldest = tasks.insert(task(&upstream, "ann", None));
        let next = tasks.insert(task(&upstream, "ann", None));
        for _ in 2..=MAX_TASKS {
            tasks.insert(task(&upstream, "ann", None));
        }
        assert_eq!(tasks.all_of("ann").len(), MAX_TASKS);
        assert!(tasks.find("ann", &oldest.alias).is_err() && tasks.find("ann", &next.alias).is_ok());
        assert!(tasks.find("bob", &bobs.alias).is_ok());
    }

    #[test]
    fn a_task_lives_a_little_longer_than_at_its_server_and_a_week_at_most() {
        let upstream = upstream();
        let kept = |ttl| {
            let task = task(&upstream, "ann", ttl);
            task.ends - task.made
        };
        assert_eq!(kept(Some(Duration::from_secs(10))), Duration::from_secs(70));
        assert_eq!((kept(Some(Duration::MAX)), kept(None)), (LONGEST, LONGEST));
    }

    #[test]
    fn the_task_of_a_server_that_was_taken_out_says_so() {
        let upstream = upstream();
        let task = task(&upstream, "ann", None);
        assert!(task.upstream().is_ok());
        drop(upstream);
        assert_eq!(task.upstream().err().unwrap().kind, ErrorKind::UpstreamUnavailable);
    }
}
