//! Trials of servers: a server is started beside the running ones, its tools are listed, and it is stopped. Edits of servers
//! that wait for consent are in the same list.
//!
//! A trial executes a command of its requester, and so does an edit that adds one. Both need the consent of another person,
//! unless the file already has exactly this server, or the requester is at the machine itself. They are kept in memory only: a
//! restart drops them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use actix_web::{HttpRequest, HttpResponse, web};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::{
    Caller, Problem,
    body::{Body, Submission},
    file_edits::{check_may_edit, edit_file, is_at_machine, to_problem},
    json_ok,
    server_settings::{has_same_target, is_enabled, settings_from_form, with_old_secrets},
};
use countersign_config::edit::{
    self, ServerChange, Settings, TrialServer,
    hidden::hide_secrets,
    paste::{MAX_PASTE_BYTES, parse_servers},
    references::{mask_likely_secrets, replace_secrets, variables_in},
};
use countersign_domain::{changes::person::Person, principal::Principal};
use countersign_protocol::ErrorKind;
use countersign_reload::{
    Reloader,
    file_edits::{EditingState, ServerChanges},
};
use countersign_runtime::{background, secret};
use countersign_upstream::trial::{TrialReport, try_server};

/// The time limit for a server to answer. Many install themselves first.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);
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
enum TrialState {
    /// Waits for the consent of another person.
    Waiting,
    Running,
    Finished,
    Refused,
}

/// The work of a trial, which begins once it has consent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum TrialPurpose {
    /// The server is started, its tools are listed, and it is stopped.
    Test,
    /// The edit of the configuration file is made.
    Save,
}

/// The data that a trial needs to run.
#[derive(Clone)]
enum TrialWork {
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
struct Trial {
    id: String,
    purpose: TrialPurpose,
    /// The name of the server, or the names of all servers of an edit.
    server: String,
    /// The beginning of the command, or the host of the address, without secrets. Empty for viewers.
    target: String,
    /// The settings that determine what is executed, as lines of the file. A placeholder stands for a secret of the file.
    /// Empty for viewers.
    yaml: String,
    by: String,
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
    requester: Arc<Principal>,
    /// The reason why an edit was not made.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    work: TrialWork,
}

impl Trial {
    /// Returns `true` while the trial waits or runs.
    const fn is_open(&self) -> bool {
        matches!(self.state, TrialState::Waiting | TrialState::Running)
    }

    fn set_state(&mut self, state: TrialState) {
        (self.state, self.changed_at) = (state, Timestamp::now());
    }

    /// Returns the trial for a viewer, without the input of the requester and the output of the server.
    fn for_viewer(self) -> Self {
        Self { target: String::new(), yaml: String::new(), report: None, error: None, ..self }
    }

    fn new(requester: &Arc<Principal>, work: TrialWork, [server, target, yaml]: [String; 3]) -> Result<Self, Problem> {
        let purpose = match work {
            TrialWork::Test(_) => TrialPurpose::Test,
            TrialWork::Save { .. } => TrialPurpose::Save,
        };
        Ok(Self {
            id: secret::generate("trl_")?,
            purpose,
            server,
            target,
            yaml,
            by: requester.name.clone(),
            at: Timestamp::now(),
            changed_at: Timestamp::now(),
            state: TrialState::Waiting,
            decided_by: None,
            report: None,
            error: None,
            requester: Arc::clone(requester),
            work,
        })
    }
}

/// The trials of this gateway, newest first.
pub struct ServerTrials {
    all: Mutex<VecDeque<Trial>>,
    max_message: usize,
}

impl ServerTrials {
    /// Creates an empty list. `max_message` limits the messages of servers, in bytes.
    pub fn new(max_message: usize) -> Self {
        Self { all: Mutex::default(), max_message }
    }

    /// Locks the list, and removes the trials that are too old.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Trial>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = Timestamp::now().checked_sub(MAX_AGE).unwrap_or(Timestamp::MIN);
        all.retain(|trial| trial.state == TrialState::Running || trial.changed_at > oldest);
        all
    }

    fn find(&self, id: &str) -> Option<Trial> {
        self.lock().iter().find(|trial| trial.id == id).cloned()
    }

    /// Adds a trial, in place of the oldest one that neither waits nor runs.
    fn add(&self, trial: Trial) -> Result<(), Problem> {
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
    fn leave_waiting(&self, id: &str, state: TrialState, by: Option<&Principal>) -> Result<Trial, Problem> {
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
    fn finish(&self, id: &str, report: Option<TrialReport>, error: Option<String>) {
        if let Some(trial) = self.lock().iter_mut().find(|trial| trial.id == id) {
            trial.set_state(TrialState::Finished);
            (trial.report, trial.error) = (report, error);
        }
    }

    /// Removes a trial whose request failed, unless somebody has decided on it already.
    fn remove_waiting(&self, id: &str) {
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
        let trial = Trial::new(requester, work, [names.clone(), names, yaml])?;
        let id = trial.id.clone();
        self.add(trial)?;
        record(reloader, "server_edit_requested", requester, &id, self).await.inspect_err(|_| self.remove_waiting(&id))
    }
}

/// Refuses more lines than a person can read before they consent.
fn check_consent_size(yaml: &str) -> Result<(), Problem> {
    if yaml.len() <= MAX_CONSENT_BYTES {
        return Ok(());
    }
    let message =
        format!("the settings of the server have more than {MAX_CONSENT_BYTES} bytes, which is too much to consent to");
    Err(Problem::new(ErrorKind::ValidationFailed, message))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TrialRequest {
    /// The name of the server. If neither `settings` nor `text` is given, the server of the file is tried.
    name: String,
    /// The keys of the server, as in the file.
    #[schema(value_type = Option<Object>)]
    settings: Option<Settings>,
    /// A text with one server, as for `POST /api/servers`.
    text: Option<String>,
}

impl Body for TrialRequest {
    const MAX_BYTES: Option<usize> = Some(MAX_PASTE_BYTES + 4096);
}

/// Trials of servers.
#[derive(Serialize, ToSchema)]
struct Trials {
    trials: Vec<Trial>,
}

/// Tries a server.
///
/// Requires the same rights as an edit. Starts the server beside the running ones, lists its tools and stops it; no tool is
/// called, and nothing is written. A command or address that the file does not have waits for the consent of another person,
/// unless the request comes from the machine itself in `auth.mode: local`. `GET /api/server-trials` has the result.
#[utoipa::path(post, path = "/api/server-trials", operation_id = "tryServer", request_body = TrialRequest,
    responses((status = 200, description = "The trial", body = Trial)))]
pub async fn start(
    submission: Submission<TrialRequest>,
    request: HttpRequest,
    reloader: web::Data<Reloader>,
    trials: web::Data<ServerTrials>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, body, .. } = submission;
    check_may_edit(&principal, &request, &reloader)?;
    let file = reloader.read_file().await.map_err(to_problem)?;
    let old = edit::find_server(file.text(), &body.name);
    let is_at_machine = is_at_machine(&request, &reloader);
    let settings = match (body.settings, body.text) {
        (Some(settings), None) => {
            let settings = settings_from_form(&body.name, settings, file.text());
            with_old_secrets(&settings, old.as_ref().unwrap_or(&Settings::new()))?
        }
        (None, Some(text)) => {
            let mut servers = parse_servers(&text, Some(&body.name))
                .map_err(|error| Problem::new(ErrorKind::ValidationFailed, error.to_string()))?;
            if servers.len() > 1 {
                return Err(Problem::new(ErrorKind::ValidationFailed, "the text has several servers; try one of them"));
            }
            let mut settings = servers.pop().map(|server| server.settings).unwrap_or_default();
            if !is_at_machine {
                // Nobody can consent to what is hidden from them.
                replace_secrets(&body.name, &mut settings, &variables_in(file.text()));
            }
            settings
        }
        (None, None) => old.clone().map_err(|error| to_problem(error.into()))?,
        (Some(_), Some(_)) => {
            return Err(Problem::new(ErrorKind::ValidationFailed, "give either `settings` or `text`"));
        }
    };
    let source = reloader.source();
    let prepare =
        |settings: &Settings| edit::server_for_trial(file.path(), &body.name, settings, &source.flags, &source.env);
    let server = prepare(&settings).map_err(|error| Problem::new(ErrorKind::ValidationFailed, error.to_string()))?;
    // Nobody has consented to a server that was saved as disabled.
    let is_configured = old.is_ok_and(|old| {
        is_enabled(&old) && prepare(&old).is_ok_and(|old| has_same_target(&old.config, &server.config))
    });
    let needs_consent = !is_configured && !is_at_machine;
    let shown_settings = if needs_consent { mask_likely_secrets(&settings) } else { hide_secrets(&settings) };
    let yaml = edit::to_yaml(&body.name, &edit::connection_settings(&shown_settings));
    if needs_consent {
        check_consent_size(&yaml)?;
    }
    let target = server.config.label.clone();
    let trial = Trial::new(&principal, TrialWork::Test(Arc::new(server)), [body.name, target, yaml])?;
    let id = trial.id.clone();
    trials.add(trial)?;
    let requested = if needs_consent {
        record(&reloader, "server_trial_requested", &principal, &id, &trials).await
    } else {
        run(&id, None, &principal, &reloader, &trials).await
    };
    requested.inspect_err(|_| trials.remove_waiting(&id))?;
    respond(&id, &trials)
}

/// Lists the trials, and the edits that waited for consent, newest first.
///
/// Each is listed for half an hour after its request and after its end. Viewers get neither the lines of the file nor reports.
#[utoipa::path(get, path = "/api/server-trials", operation_id = "listServerTrials", responses(
    (status = 200, description = "The trials", body = Trials)))]
pub async fn list(caller: Caller, trials: web::Data<ServerTrials>) -> HttpResponse {
    let may_decide = caller.principal.role.may_decide();
    let visible_to_caller = |trial: Trial| if may_decide { trial } else { trial.for_viewer() };
    let trials = trials.lock().iter().cloned().map(visible_to_caller).collect();
    json_ok(&Trials { trials })
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
enum TrialVerdict {
    Run,
    Refuse,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TrialDecision {
    verdict: TrialVerdict,
}

impl Body for TrialDecision {
    const NOT_FOUND: (&'static str, ErrorKind) = ("Trial", ErrorKind::NotFound);
}

/// Decides on a trial or an edit of somebody else.
///
/// Requires the role reviewer or admin. The requester, and any other account of theirs, may only refuse it (403
/// `SELF_APPROVAL`). An edit is made if the file has not changed since.
#[utoipa::path(post, path = "/api/server-trials/{id}/decision", operation_id = "decideServerTrial",
    request_body = TrialDecision, responses((status = 200, description = "The trial", body = Trial), (status = 409)))]
pub async fn decide(
    submission: Submission<TrialDecision>,
    reloader: web::Data<Reloader>,
    trials: web::Data<ServerTrials>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, path_parameter: id, body } = submission;
    let trial = trials.find(&id).ok_or_else(|| Problem::new(ErrorKind::NotFound, "there is no such trial"))?;
    if body.verdict == TrialVerdict::Refuse {
        trials.leave_waiting(&id, TrialState::Refused, Some(&*principal))?;
        let event = match trial.purpose {
            TrialPurpose::Test => "server_trial_refused",
            TrialPurpose::Save => "server_edit_refused",
        };
        record(&reloader, event, &principal, &id, &trials).await?;
        return respond(&id, &trials);
    }
    if Person::from_principal(&trial.requester).may_be_same_as(Person::from_principal(&principal)) {
        return Err(Problem::new(ErrorKind::SelfApproval, "somebody else must consent to what you asked for"));
    }
    // Editing may have been turned off since the trial was requested.
    if reloader.editing() != EditingState::On {
        return Err(Problem::new(ErrorKind::Forbidden, "servers are not tried or edited here any more"));
    }
    run(&id, Some(&*principal), &principal, &reloader, &trials).await?;
    respond(&id, &trials)
}

/// Responds with the present state of a trial.
fn respond(id: &str, trials: &ServerTrials) -> Result<HttpResponse, Problem> {
    let trial = trials.find(id).ok_or_else(|| Problem::new(ErrorKind::NotFound, "there is no such trial"))?;
    Ok(json_ok(&trial))
}

/// Records an event of a trial in the audit trail.
async fn record(
    reloader: &Reloader,
    event: &'static str,
    by: &Principal,
    id: &str,
    trials: &ServerTrials,
) -> Result<(), Problem> {
    let Some(trial) = trials.find(id) else { return Ok(()) };
    let details = json!({ "server": trial.server, "target": trial.target, "requestedBy": trial.by });
    reloader.record(event, &by.name, &details).await.map_err(to_problem)
}

/// Starts a waiting trial, or makes a waiting edit, in a task of its own. Otherwise, a client that disconnects could leave the
/// trial running for ever.
async fn run(
    id: &str,
    decided_by: Option<&Principal>,
    by: &Arc<Principal>,
    reloader: &web::Data<Reloader>,
    trials: &web::Data<ServerTrials>,
) -> Result<(), Problem> {
    let trial = trials.leave_waiting(id, TrialState::Running, decided_by)?;
    let (by, reloader, trials) = (Arc::clone(by), web::Data::clone(reloader), web::Data::clone(trials));
    let result = background::spawn_with_result(async move { carry_out(trial, &by, &reloader, &trials).await }).await;
    result.map_err(|_| Problem::new(ErrorKind::Internal, "the trial was not carried out"))?
}

/// Starts the server of a trial that has begun, or makes its edit. The entry in the audit trail precedes it.
async fn carry_out(
    trial: Trial,
    by: &Principal,
    reloader: &web::Data<Reloader>,
    trials: &web::Data<ServerTrials>,
) -> Result<(), Problem> {
    let Trial { id, work, by: requester, .. } = trial;
    match work {
        TrialWork::Test(server) => {
            let fail = |error: String| TrialReport { error: Some(error), ..TrialReport::default() };
            if let Err(problem) = record(reloader, "server_tried", by, &id, trials).await {
                trials.finish(&id, Some(fail("was not started, because that could not be recorded".to_owned())), None);
                return Err(problem);
            }
            server.register_secrets();
            let trials = web::Data::clone(trials);
            background::spawn(async move {
                let report = match tempfile::tempdir() {
                    Ok(folder) => try_server(&server.config, folder.path(), trials.max_message, TRIAL_TIMEOUT).await,
                    Err(error) => fail(format!("was not started: {error}")),
                };
                trials.finish(&id, Some(report), None);
            });
            Ok(())
        }
        TrialWork::Save { changes, version } => {
            let not_made = |problem: Problem| {
                trials.finish(&id, None, Some(problem.error.message.to_string()));
                problem
            };
            record(reloader, "server_edit_accepted", by, &id, trials).await.map_err(not_made)?;
            edit_file(reloader, Arc::unwrap_or_clone(changes), version, requester).await.map_err(not_made)?;
            trials.finish(&id, None, None);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
