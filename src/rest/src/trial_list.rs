//! The trials of servers, and the edits of servers that wait for consent, in one list. They are kept in memory only: a restart
//! drops them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::{Problem, file_edits::to_problem};
use countersign_config::edit::{ServerChange, TrialServer};
use countersign_domain::{changes::person::Person, principal::Principal};
use countersign_protocol::ErrorKind;
use countersign_reload::{Reloader, file_edits::ServerChanges};
use countersign_runtime::secret;
use countersign_upstream::trial::TrialReport;

/// The time for which a trial waits for consent, and for which its report is kept.
const MAX_AGE: SignedDuration = SignedDuration::from_mins(30);
/// The maximum number of trials that are kept.
const MAX_TRIALS: usize = 100;
/// The maximum number of trials that run at the same time.
const MAX_RUNNING: usize = 4;
/// The maximum number of trials of one person that wait or run, so that others have a turn.
const MAX_OPEN_PER_PERSON: usize = 3;
/// The maximum size of the lines that a person consents to, in bytes.
const MAX_CONSENT_BYTES: usize = 8 << 10;

/// The state of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum TrialState {
    /// Waits for the consent of another person.
    Waiting,
    Running,
    Finished,
    Refused,
}

/// The work of a trial, which begins once it has consent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum TrialPurpose {
    /// The server is started, its tools are listed, and it is stopped.
    Test,
    /// The edit of the configuration file is made.
    Save,
}

/// The data that a trial needs to run.
#[derive(Clone)]
pub(super) enum TrialWork {
    Test(Arc<TrialServer>),
    Save {
        changes: Arc<ServerChanges>,
        /// The version of the file that the edit is based on.
        version: String,
    },
}

/// A trial of a server, or an edit that waits for consent.
#[derive(Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Trial {
    pub id: String,
    pub purpose: TrialPurpose,
    /// The name of the server, or the names of all servers of an edit.
    server: String,
    /// The beginning of the command, or the host of the address, without secrets. Empty for viewers.
    pub target: String,
    /// The settings that determine what is executed, as lines of the file. A placeholder stands for a secret of the file.
    /// Empty for viewers.
    pub yaml: String,
    pub by: String,
    at: Timestamp,
    /// The time at which the trial came into its state.
    #[serde(skip)]
    changed_at: Timestamp,
    state: TrialState,
    /// The person who consented or refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    decided_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<TrialReport>,
    #[serde(skip)]
    pub requester: Arc<Principal>,
    /// The reason why an edit was not made.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    pub work: TrialWork,
}

impl Trial {
    /// Creates a trial that waits, without a target and lines.
    pub(super) fn new(requester: &Arc<Principal>, work: TrialWork, server: String) -> Result<Self, Problem> {
        let purpose = match work {
            TrialWork::Test(_) => TrialPurpose::Test,
            TrialWork::Save { .. } => TrialPurpose::Save,
        };
        let now = Timestamp::now();
        Ok(Self {
            id: secret::generate("trl_")?,
            purpose,
            server,
            target: String::new(),
            yaml: String::new(),
            by: requester.name.clone(),
            at: now,
            changed_at: now,
            state: TrialState::Waiting,
            decided_by: None,
            report: None,
            error: None,
            requester: Arc::clone(requester),
            work,
        })
    }

    /// Returns `true` while the trial waits or runs.
    const fn is_open(&self) -> bool {
        matches!(self.state, TrialState::Waiting | TrialState::Running)
    }

    fn set_state(&mut self, state: TrialState) {
        (self.state, self.changed_at) = (state, Timestamp::now());
    }

    /// Returns the trial for a viewer, without the input of the requester and the output of the server.
    pub(super) fn for_viewer(self) -> Self {
        Self { target: String::new(), yaml: String::new(), report: None, error: None, ..self }
    }

    /// Records an event of the trial in the audit trail.
    pub(super) async fn record(&self, event: &'static str, by: &Principal, reloader: &Reloader) -> Result<(), Problem> {
        let details = json!({ "server": self.server, "target": self.target, "requestedBy": self.by });
        reloader.record(event, &by.name, &details).await.map_err(to_problem)
    }
}

/// The trials of this gateway, newest first.
pub struct ServerTrials {
    all: Mutex<VecDeque<Trial>>,
    pub(super) max_message: usize,
}

impl ServerTrials {
    /// Creates an empty list. `max_message` limits the messages of servers, in bytes.
    pub fn new(max_message: usize) -> Self {
        Self { all: Mutex::default(), max_message }
    }

    /// Locks the list, and removes the trials that are too old.
    pub(super) fn lock(&self) -> MutexGuard<'_, VecDeque<Trial>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = Timestamp::now().checked_sub(MAX_AGE).unwrap_or(Timestamp::MIN);
        all.retain(|trial| trial.state == TrialState::Running || trial.changed_at > oldest);
        all
    }

    /// Returns the present state of a trial.
    ///
    /// # Errors
    /// `NOT_FOUND`
    pub(super) fn find(&self, id: &str) -> Result<Trial, Problem> {
        let found = self.lock().iter().find(|trial| trial.id == id).cloned();
        found.ok_or_else(|| Problem::new(ErrorKind::NotFound, "there is no such trial"))
    }

    /// Adds a trial, in place of the oldest one that neither waits nor runs.
    pub(super) fn add(&self, trial: Trial) -> Result<(), Problem> {
        let mut all = self.lock();
        let requester = Person::from_principal(&trial.requester);
        let is_own = |other: &Trial| Person::from_principal(&other.requester).may_be_same_as(requester);
        if all.iter().filter(|other| other.is_open() && is_own(other)).count() >= MAX_OPEN_PER_PERSON {
            let message = format!(
                "{MAX_OPEN_PER_PERSON} requests of yours wait or run already; withdraw one, or wait until it is decided"
            );
            return Err(Problem::new(ErrorKind::RateLimited, message));
        }
        if all.len() >= MAX_TRIALS {
            let Some(oldest) = all.iter().rposition(|trial| !trial.is_open()) else {
                return Err(Problem::new(ErrorKind::RateLimited, "too many servers are being tried; try again later"));
            };
            all.remove(oldest);
        }
        all.push_front(trial);
        Ok(())
    }

    /// Moves a waiting trial to another state, and returns it.
    ///
    /// # Errors
    /// `VERSION_CONFLICT` if it does not wait; `RATE_LIMITED` if too many others run.
    pub(super) fn leave_waiting(
        &self,
        id: &str,
        state: TrialState,
        by: Option<&Arc<Principal>>,
    ) -> Result<Trial, Problem> {
        let mut all = self.lock();
        let running = all.iter().filter(|trial| trial.state == TrialState::Running).count();
        if state == TrialState::Running && running >= MAX_RUNNING {
            let message = "other servers are being tried; try again in a minute";
            return Err(Problem::new(ErrorKind::RateLimited, message).with("retryAfter", 60));
        }
        let trial = all.iter_mut().find(|trial| trial.id == id && trial.state == TrialState::Waiting);
        let trial = trial.ok_or_else(|| Problem::new(ErrorKind::VersionConflict, "the trial no longer waits"))?;
        trial.set_state(state);
        trial.decided_by = by.map(|by| by.name.clone());
        Ok(trial.clone())
    }

    /// Ends a trial with its report, or with the reason why an edit was not made.
    pub(super) fn finish(&self, id: &str, report: Option<TrialReport>, error: Option<String>) {
        if let Some(trial) = self.lock().iter_mut().find(|trial| trial.id == id) {
            trial.set_state(TrialState::Finished);
            (trial.report, trial.error) = (report, error);
        }
    }

    /// Removes a trial whose request failed, unless somebody has decided on it already.
    pub(super) fn remove_waiting(&self, id: &str) {
        self.lock().retain(|trial| trial.id != id || trial.state != TrialState::Waiting);
    }

    /// Keeps an edit until another person consents. It is made if the file still has this version then.
    pub(super) async fn request_edit(
        &self,
        requester: &Arc<Principal>,
        reloader: &Reloader,
        changes: ServerChanges,
        version: String,
    ) -> Result<(), Problem> {
        let yaml = changes.to_consent_yaml();
        check_consent_size(&yaml)?;
        let names: Vec<&str> = changes.unmasked.iter().map(ServerChange::name).collect();
        let names = names.join(", ");
        let work = TrialWork::Save { changes: Arc::new(changes), version };
        let trial = Trial { target: names.clone(), yaml, ..Trial::new(requester, work, names)? };
        self.add(trial.clone())?;
        let recorded = trial.record("server_edit_requested", requester, reloader).await;
        recorded.inspect_err(|_| self.remove_waiting(&trial.id))
    }
}

/// Refuses more lines than a person can read before they consent.
pub(super) fn check_consent_size(yaml: &str) -> Result<(), Problem> {
    if yaml.len() <= MAX_CONSENT_BYTES {
        return Ok(());
    }
    let message =
        format!("the settings of the server have more than {MAX_CONSENT_BYTES} bytes, which is too much to consent to");
    Err(Problem::invalid(message))
}

#[cfg(test)]
mod tests;
