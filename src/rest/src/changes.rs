//! Changes and the audit trail.

use std::{collections::BTreeMap, sync::Arc};

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Caller, Problem, Query,
    body::{self, Body, Submission},
    json_of, json_ok, path_id,
};
use countersign_config::HttpConfig;
use countersign_domain::changes::{Change, ChangeState, Verdict, digest::hex, export::ExportLine};
use countersign_protocol::ErrorKind;
use countersign_review::{ChangeFilter, Changes, DecideChange, DecideError, EditChange};
use countersign_store::{AuditSearch, ChangeCriteria};

/// Returns the problem of a decision that was not made, with the current change.
pub fn decide_problem(error: DecideError) -> Problem {
    Problem::from(error.error).with_change(error.current)
}

/// Returns the problem of an unknown id of a change.
pub fn change_not_found() -> Problem {
    Problem::new(ErrorKind::ChangeNotFound, "Change not found")
}

/// `GET /api/changes?status=&principal=&tool=&server=&q=&since=&until=&limit=&cursor=`, newest first.
pub async fn list(_: Caller, request: HttpRequest, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct ChangePage {
        changes: Vec<Arc<Change>>,
        next_cursor: Option<String>,
        counts: BTreeMap<ChangeState, u64>,
    }
    let known = ["status", "principal", "tool", "server", "q", "since", "until", "limit", "cursor"];
    let query = Query::read(&request, &known)?;
    let filter = ChangeFilter {
        states: query.names("status")?,
        principals: query.texts("principal"),
        criteria: ChangeCriteria {
            providers: query.texts("server"),
            tools: query.texts("tool"),
            text: query.get("q").map(str::to_owned),
            since: query.time("since")?,
            until: query.time("until")?,
        },
    };
    let mut page = changes.list(filter, query.limit()?, query.get("cursor").map(str::to_owned)).await?;
    changes.note_waits(&mut page.items).await?;
    let counts = changes.counts().into_iter().collect();
    let bytes = page.items.iter().map(|change| change.estimated_size()).sum();
    json_of(bytes, ChangePage { changes: page.items, next_cursor: page.next_cursor, counts }).await
}

/// `GET /api/changes/{id}`
pub async fn get(_: Caller, request: HttpRequest, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let id = path_id(&request).ok_or_else(change_not_found)?;
    let mut change = changes.get(id).await?.ok_or_else(change_not_found)?;
    changes.note_waits(std::slice::from_mut(&mut change)).await?;
    json_of(change.estimated_size(), change).await
}

/// Returns a change after a decision.
async fn change_response(decided: Result<Arc<Change>, DecideError>) -> Result<HttpResponse, Problem> {
    let change = decided.map_err(decide_problem)?;
    json_of(change.estimated_size(), change).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionBody {
    decision: Verdict,
    comment: Option<String>,
    version: u64,
    digest: Option<String>,
}

impl Body for DecisionBody {}

/// `POST /api/changes/{id}/decision`
pub async fn decide(
    submission: Submission<DecisionBody>,
    changes: web::Data<Changes>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, id, body } = submission;
    let decision = DecideChange {
        id,
        reviewer: principal,
        verdict: body.decision,
        comment: body::comment(body.comment)?,
        version: body.version,
        digest: body.digest,
        bulk: false,
    };
    change_response(changes.decide(decision).await).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditBody {
    arguments: Box<RawValue>,
    version: u64,
    comment: Option<String>,
}

impl Body for EditBody {
    /// Allows as many bytes as a request of an agent.
    fn max_bytes(http: &HttpConfig) -> usize {
        http.max_body
    }
}

/// `POST /api/changes/{id}/edit`
pub async fn edit(submission: Submission<EditBody>, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let Submission { principal, id, body } = submission;
    let edit = EditChange {
        id,
        reviewer: principal,
        arguments: body.arguments,
        version: body.version,
        comment: body::comment(body.comment)?,
    };
    change_response(changes.edit(edit).await).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionBody {
    version: u64,
}

impl Body for VersionBody {}

/// `POST /api/changes/{id}/undo`
pub async fn undo(submission: Submission<VersionBody>, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let Submission { principal, id, body } = submission;
    change_response(changes.undo(&id, &principal, body.version).await).await
}

/// `POST /api/changes/{id}/refresh`
pub async fn refresh(
    submission: Submission<VersionBody>,
    changes: web::Data<Changes>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, id, body } = submission;
    change_response(changes.refresh(&id, &principal, body.version).await).await
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum SettledAs {
    Applied,
    Failed,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleBody {
    outcome: SettledAs,
    comment: Option<String>,
    version: u64,
}

impl Body for SettleBody {}

/// `POST /api/changes/{id}/settle`
pub async fn settle(submission: Submission<SettleBody>, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let Submission { principal, id, body } = submission;
    let applied = matches!(body.outcome, SettledAs::Applied);
    let comment = body::comment(body.comment)?;
    change_response(changes.settle(&id, &principal, applied, comment, body.version).await).await
}

/// `GET /api/audit?change=&event=&actor=&q=&since=&until=&limit=&cursor=`, newest first, with the head of the whole trail and the
/// titles of the changes.
pub async fn audit(_: Caller, request: HttpRequest, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    #[derive(Serialize)]
    struct Head {
        seq: u64,
        hash: String,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct AuditPage<'a> {
        entries: Vec<ExportLine<'a>>,
        titles: BTreeMap<&'a str, &'a str>,
        next_cursor: Option<String>,
        head: Head,
    }
    let query = Query::read(&request, &["change", "event", "actor", "q", "since", "until", "limit", "cursor"])?;
    let search = AuditSearch {
        change: query.get("change").map(str::to_owned),
        events: query.texts("event"),
        actors: query.texts("actor"),
        text: query.get("q").map(str::to_owned),
        since: query.time("since")?,
        until: query.time("until")?,
    };
    let page = changes.search_audit(search, query.limit()?, query.get("cursor")).await?;
    let head = changes.audit_head().await?;
    Ok(json_ok(&AuditPage {
        entries: page.items.iter().map(|found| ExportLine::from(&found.entry)).collect(),
        titles: page
            .items
            .iter()
            .filter_map(|found| Some((found.entry.change_id.as_str(), found.title.as_deref()?)))
            .collect(),
        next_cursor: page.next_cursor,
        head: Head { seq: head.seq, hash: hex(&head.hash) },
    }))
}
