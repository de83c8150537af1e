//! The known tasks: their ids for clients, their principals and their upstreams.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use tokio::time::Instant;

use super::{awaited_task::AwaitedTask, kept_outcome::KeptOutcome};
use crate::translation::task_json::TaskTimes;
use countersign_domain::text::truncate;
use countersign_protocol::{ErrorKind, McpError};
use countersign_upstream::{Caller, Upstream};

/// The maximum number of tasks of one principal that are remembered. Beyond it, the oldest one is forgotten.
const MAX_TASKS_PER_PRINCIPAL: usize = 1000;

/// The longest time for which a task is remembered, including a task without a `ttl`.
const MAX_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// The kind of a task, by the eras of its client and its upstream. It decides how the gateway gets the task's status
/// and result.
pub enum TaskKind {
    /// The task runs at an upstream of its client's era.
    SameEra,
    /// The task runs at a stateless upstream, for a client of 2025-11-25. `is_cancelled` is set by the client's
    /// cancellation.
    ModernUpstream { is_cancelled: AtomicBool },
    /// The task runs at an upstream of 2025-11-25, for a stateless client. The gateway waits for its result.
    LegacyUpstream(Arc<AwaitedTask>),
    /// The gateway keeps the outcome: a client of 2025-11-25 requested a task, and the upstream answered at once.
    Finished(Arc<KeptOutcome>, TaskTimes),
}

impl TaskKind {
    /// Returns the kind of a new task at a stateless upstream, for a client of 2025-11-25.
    pub const fn modern_upstream() -> Self {
        Self::ModernUpstream { is_cancelled: AtomicBool::new(false) }
    }

    /// Returns `true` if the gateway has forgotten the outcome of the task.
    fn is_forgotten(&self) -> bool {
        match self {
            Self::LegacyUpstream(awaited) => awaited.outcome.is_forgotten(),
            Self::Finished(outcome, _) => outcome.is_forgotten(),
            Self::SameEra | Self::ModernUpstream { .. } => false,
        }
    }
}

/// One task.
pub struct Task {
    /// The unguessable id that the client uses. If several gateways may serve the store, it begins with the name of
    /// this gateway and a dot.
    pub alias: String,
    /// The upstream's id of the task.
    pub upstream_id: String,
    /// The configured upstream. If each person uses it with an account of their own, [`Self::upstream`] finds the one
    /// of the caller.
    pub upstream: Weak<Upstream>,
    /// The caller of the upstream. Further requests about the task use the same link.
    pub caller: Caller,
    pub kind: TaskKind,
    created_at: Instant,
    /// The time from which no client can name the task any more.
    pub expires_at: Instant,
}

impl Task {
    pub fn new(
        upstream_id: String,
        upstream: &Arc<Upstream>,
        caller: Caller,
        kind: TaskKind,
        ttl: Option<Duration>,
    ) -> Self {
        let created_at = Instant::now();
        // The entry lives a little longer than the task at the upstream, whose answer is decisive.
        let retention = ttl.map_or(MAX_RETENTION, |ttl| ttl.saturating_add(Duration::from_secs(60)).min(MAX_RETENTION));
        Self {
            alias: nanoid::nanoid!(32, &nanoid::alphabet::SAFE[2..]),
            upstream_id,
            upstream: Arc::downgrade(&upstream.configured()),
            caller: Caller { link_choice: caller.link_choice.for_follow_up(), ..caller },
            kind,
            created_at,
            expires_at: created_at + retention,
        }
    }

    /// Returns the upstream that runs the task.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE` if the upstream is no longer configured, and the errors of [`Upstream::for_principal`].
    pub async fn upstream(&self) -> Result<Arc<Upstream>, McpError> {
        let upstream = self.upstream.upgrade().ok_or_else(|| {
            McpError::new(ErrorKind::UpstreamUnavailable, "the upstream of this task is no longer configured")
        })?;
        upstream.for_principal(&self.caller.principal).await
    }

    /// Returns `true` once no client can name the task any more.
    pub fn is_expired(&self) -> bool {
        self.expires_at <= Instant::now() || self.kind.is_forgotten()
    }

    /// Returns `true` if a client of 2025-11-25 has cancelled the task at a stateless upstream.
    pub fn is_cancelled(&self) -> bool {
        matches!(&self.kind, TaskKind::ModernUpstream { is_cancelled } if is_cancelled.load(Ordering::Relaxed))
    }
}

/// Returns the error for a task that does not exist, or that the client must not see.
pub fn unknown_task_error(alias: &str) -> McpError {
    McpError::new(ErrorKind::InvalidParams, "Task not found").with("taskId", truncate(alias, 128))
}

/// The tasks that upstreams run for clients. They are kept in memory only, so after a restart their ids are
/// unknown.
#[derive(Default)]
pub struct Tasks {
    /// The name of this gateway, if several gateways may serve its store.
    node: Option<String>,
    by_alias: DashMap<String, Arc<Task>>,
}

impl Tasks {
    pub fn new(node: Option<String>) -> Self {
        Self { node, by_alias: DashMap::new() }
    }

    /// Adds a task, and returns it with the alias that clients use. Expired tasks are removed.
    pub fn insert(&self, mut task: Task) -> Arc<Task> {
        if let Some(node) = &self.node {
            task.alias.insert(0, '.');
            task.alias.insert_str(0, node);
        }
        let task = Arc::new(task);
        let principal = &task.caller.principal.name;
        let mut oldest: Option<(Instant, String)> = None;
        let mut count = 0;
        // A full scan is cheap here, because each new task is the result of a call to an upstream.
        self.by_alias.retain(|_, other| {
            let is_remembered = !other.is_expired();
            if is_remembered && other.caller.principal.name == *principal {
                count += 1;
                if oldest.as_ref().is_none_or(|(created_at, _)| other.created_at < *created_at) {
                    oldest = Some((other.created_at, other.alias.clone()));
                }
            }
            is_remembered
        });
        if count >= MAX_TASKS_PER_PRINCIPAL
            && let Some((_, alias)) = oldest
        {
            self.by_alias.remove(&alias);
        }
        self.by_alias.insert(task.alias.clone(), Arc::clone(&task));
        task
    }

    /// Finds a task of a principal.
    ///
    /// # Errors
    /// `-32602` for a task of another principal and for an unknown one, with the same message.
    pub fn find(&self, principal: &str, alias: &str) -> Result<Arc<Task>, McpError> {
        let task = self.by_alias.get(alias).map(|task| Arc::clone(&task));
        task.filter(|task| task.caller.principal.name == principal && !task.is_expired())
            .ok_or_else(|| unknown_task_error(alias))
    }

    /// Forgets a task that no client will request.
    pub fn forget(&self, alias: &str) {
        self.by_alias.remove(alias);
    }

    /// Returns the tasks of a principal's handshake-era clients, oldest first. Tasks of stateless clients are left out,
    /// because no other client knows them and the extension has no list.
    pub fn list_for(&self, principal: &str) -> Vec<Arc<Task>> {
        let is_listed =
            |task: &Task| task.caller.principal.name == principal && !task.caller.is_modern && !task.is_expired();
        let listed_tasks = self.by_alias.iter().filter(|task| is_listed(task));
        let mut listed_tasks: Vec<_> = listed_tasks.map(|task| Arc::clone(&task)).collect();
        listed_tasks.sort_by(|a, b| (a.created_at, &a.alias).cmp(&(b.created_at, &b.alias)));
        listed_tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::kept_outcome::TaskOutcome;
    use countersign_config::{UpstreamConfig, UpstreamTarget};
    use countersign_domain::principal::Principal;
    use countersign_exchange::memory::{MemoryBudget, UnreadHolder};
    use countersign_protocol::{Revision, negotiate::ClientCapabilities};
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
            session_ended: None,
            capabilities: ClientCapabilities::default(),
            is_modern: false,
            log_level: None,
            link_choice: LinkChoice::default(),
        };
        Task::new("own".into(), upstream, caller, TaskKind::SameEra, ttl)
    }

    #[test]
    fn task_alias_is_unguessable_and_valid_for_its_principal() {
        let (tasks, upstream) = (Tasks::default(), upstream());
        let (first, second) = (tasks.insert(task(&upstream, "ann", None)), tasks.insert(task(&upstream, "ann", None)));
        assert!(first.alias != second.alias && first.alias != "own" && first.alias.len() == 32);
        let aliases = (0..100).map(|_| task(&upstream, "ann", None).alias);
        assert!(
            aliases.flat_map(String::into_bytes).all(|byte| byte.is_ascii_alphanumeric()),
            "a double click selects the whole id"
        );
        assert!(tasks.find("ann", &first.alias).is_ok());
        let (foreign, unknown) = (tasks.find("bob", &first.alias), tasks.find("ann", "none"));
        let shown = |error: McpError| (error.kind, error.message.to_string());
        assert_eq!(
            shown(foreign.err().unwrap()),
            shown(unknown.err().unwrap()),
            "the error does not reveal that the task exists"
        );
        assert!(tasks.find("ann", "own").is_err());
        let names = tasks.list_for("ann").iter().map(|task| task.alias.clone()).collect::<Vec<_>>();
        assert_eq!((names, tasks.list_for("bob").len()), (vec![first.alias.clone(), second.alias.clone()], 0));
        let mut stateless = task(&upstream, "bob", None);
        stateless.caller.is_modern = true;
        tasks.insert(stateless);
        assert_eq!(tasks.list_for("bob").len(), 0, "a stateless client's task is unknown to others");
        tasks.forget(&first.alias);
        assert!(tasks.find("ann", &first.alias).is_err());
    }

    #[test]
    fn task_alias_begins_with_node_name() {
        let (tasks, upstream) = (Tasks::new(Some("a".into())), upstream());
        let task = tasks.insert(task(&upstream, "ann", None));
        assert_eq!(task.alias.split_once('.').map(|(node, rest)| (node, rest.len())), Some(("a", 32)));
        assert!(tasks.find("ann", &task.alias).is_ok());
    }

    #[test]
    fn oldest_task_of_principal_is_forgotten_beyond_limit() {
        let (tasks, upstream) = (Tasks::default(), upstream());
        let of_bob = tasks.insert(task(&upstream, "bob", None));
        let oldest = tasks.insert(task(&upstream, "ann", None));
        let next = tasks.insert(task(&upstream, "ann", None));
        for _ in 2..=MAX_TASKS_PER_PRINCIPAL {
            tasks.insert(task(&upstream, "ann", None));
        }
        assert_eq!(tasks.list_for("ann").len(), MAX_TASKS_PER_PRINCIPAL);
        assert!(tasks.find("ann", &oldest.alias).is_err() && tasks.find("ann", &next.alias).is_ok());
        assert!(tasks.find("bob", &of_bob.alias).is_ok());
    }

    #[test]
    fn task_with_forgotten_outcome_is_unknown() {
        let (tasks, upstream) = (Tasks::default(), upstream());
        let outcome = KeptOutcome::new(MemoryBudget::new(1000, 1000).share("ann"));
        outcome.keep(TaskOutcome::Cancelled);
        let kind = TaskKind::Finished(Arc::clone(&outcome), TaskTimes::now());
        let task = tasks.insert(Task { kind, ..task(&upstream, "ann", None) });
        assert!(tasks.find("ann", &task.alias).is_ok() && tasks.list_for("ann").len() == 1);
        assert!(outcome.close());
        assert!(tasks.find("ann", &task.alias).is_err() && tasks.list_for("ann").is_empty());
    }

    #[test]
    fn task_expires_shortly_after_its_ttl_or_after_a_week() {
        let upstream = upstream();
        let retention = |ttl| {
            let task = task(&upstream, "ann", ttl);
            task.expires_at - task.created_at
        };
        assert_eq!(retention(Some(Duration::from_secs(10))), Duration::from_secs(70));
        assert_eq!((retention(Some(Duration::MAX)), retention(None)), (MAX_RETENTION, MAX_RETENTION));
    }

    #[actix::test]
    async fn task_of_removed_upstream_is_unavailable() {
        let upstream = upstream();
        let task = task(&upstream, "ann", None);
        assert!(task.upstream().await.is_ok());
        drop(upstream);
        assert_eq!(task.upstream().await.err().unwrap().kind, ErrorKind::UpstreamUnavailable);
    }
}
