//! Trials of servers: a server is started beside the running ones, its tools are listed, and it is stopped. Edits of servers
//! that wait for consent are decided here, too.
//!
//! A trial executes a command of its requester, and so does an edit that adds one. Both need the consent of another person,
//! unless the file already has exactly this server, or the requester is at the machine itself.

use std::{sync::Arc, time::Duration};

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Caller, Problem,
    body::{Body, Submission},
    file_edits::{Editor, check_editing_is_on, edit_file, to_problem},
    json_response, run_uninterrupted,
    server_settings::{has_same_target, is_enabled, settings_from_form, with_old_secrets},
    trial_list::{ServerTrials, Trial, TrialPurpose, TrialState, TrialWork, check_consent_size},
};
use countersign_config::edit::{
    self, Settings,
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
use countersign_runtime::background;
use countersign_upstream::trial::{TrialReport, try_server};

/// The time limit for a server to answer. Many install themselves first.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);

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
    Submission { principal, body, .. }: Submission<TrialRequest>,
    request: HttpRequest,
    reloader: web::Data<Reloader>,
    trials: web::Data<ServerTrials>,
) -> Result<HttpResponse, Problem> {
    check_editing_is_on(&reloader)?;
    let Editor { is_at_machine, .. } = Editor::new(&principal, &request, &reloader)?;
    let file = reloader.read_file().await.map_err(to_problem)?;
    let old = edit::find_server(file.text(), &body.name);
    let settings = match (body.settings, body.text) {
        (Some(settings), None) => {
            let settings = settings_from_form(&body.name, settings, file.text());
            with_old_secrets(&settings, old.as_ref().unwrap_or(&Settings::new()))?
        }
        (None, Some(text)) => {
            let mut servers = parse_servers(&text, Some(&body.name)).map_err(Problem::invalid)?;
            if servers.len() > 1 {
                return Err(Problem::invalid("the text has several servers; try one of them"));
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
            return Err(Problem::invalid("give either `settings` or `text`"));
        }
    };
    let source = reloader.source();
    let prepare =
        |settings: &Settings| edit::server_for_trial(file.path(), &body.name, settings, &source.flags, &source.env);
    let server = prepare(&settings).map_err(Problem::invalid)?;
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
    let mut trial = Trial::new(&principal, TrialWork::Test(Arc::new(server)), body.name)?;
    (trial.target, trial.yaml) = (target, yaml);
    trials.add(trial.clone())?;
    let started = if needs_consent {
        trial.record("server_trial_requested", &principal, &reloader).await
    } else {
        run(&trial.id, None, &reloader, &trials).await
    };
    started.inspect_err(|_| trials.remove_waiting(&trial.id))?;
    Ok(json_response(&trials.find(&trial.id)?))
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
    json_response(&Trials { trials })
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
    Submission { principal, path_parameter: id, body }: Submission<TrialDecision>,
    reloader: web::Data<Reloader>,
    trials: web::Data<ServerTrials>,
) -> Result<HttpResponse, Problem> {
    let trial = trials.find(&id)?;
    if body.verdict == TrialVerdict::Refuse {
        trials.leave_waiting(&id, TrialState::Refused, Some(&principal))?;
        let event = match trial.purpose {
            TrialPurpose::Test => "server_trial_refused",
            TrialPurpose::Save => "server_edit_refused",
        };
        trial.record(event, &principal, &reloader).await?;
        return Ok(json_response(&trials.find(&id)?));
    }
    if Person::from_principal(&trial.requester).may_be_same_as(Person::from_principal(&principal)) {
        return Err(Problem::new(ErrorKind::SelfApproval, "somebody else must consent to what you asked for"));
    }
    // Editing may have been turned off since the trial was requested.
    if reloader.editing() != EditingState::On {
        return Err(Problem::new(ErrorKind::Forbidden, "servers are not tried or edited here any more"));
    }
    run(&id, Some(&principal), &reloader, &trials).await?;
    Ok(json_response(&trials.find(&id)?))
}

/// Starts a waiting trial, or makes a waiting edit. If a client that disconnects interrupted it, the trial would run for ever.
async fn run(
    id: &str,
    decided_by: Option<&Arc<Principal>>,
    reloader: &web::Data<Reloader>,
    trials: &web::Data<ServerTrials>,
) -> Result<(), Problem> {
    let trial = trials.leave_waiting(id, TrialState::Running, decided_by)?;
    let by = Arc::clone(decided_by.unwrap_or(&trial.requester));
    let (reloader, trials) = (web::Data::clone(reloader), web::Data::clone(trials));
    let work = async move { carry_out(trial, &by, &reloader, &trials).await };
    run_uninterrupted(work, "the trial was not carried out").await?
}

/// Starts the server of a trial that has begun, or makes its edit. The entry in the audit trail precedes it.
async fn carry_out(
    trial: Trial,
    by: &Principal,
    reloader: &web::Data<Reloader>,
    trials: &web::Data<ServerTrials>,
) -> Result<(), Problem> {
    match &trial.work {
        TrialWork::Test(server) => {
            let fail = |error: String| TrialReport { error: Some(error), ..TrialReport::default() };
            if let Err(problem) = trial.record("server_tried", by, reloader).await {
                let report = fail("was not started, because that could not be recorded".to_owned());
                trials.finish(&trial.id, Some(report), None);
                return Err(problem);
            }
            server.register_secrets();
            let (trials, server, id) = (web::Data::clone(trials), Arc::clone(server), trial.id.clone());
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
            let edit = async {
                trial.record("server_edit_accepted", by, reloader).await?;
                edit_file(reloader, ServerChanges::clone(changes), version.clone(), trial.by.clone()).await
            };
            let result = edit.await.map(drop);
            let error = result.as_ref().err().map(|problem| problem.error.message.to_string());
            trials.finish(&trial.id, None, error);
            result
        }
    }
}
