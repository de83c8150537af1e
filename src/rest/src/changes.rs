//! Changes and the audit trail: lists, one, a decision, a settlement.

use std::{collections::BTreeMap, sync::Arc};

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Caller, Problem, Query, body, json_of, json_ok, path_id,
    posted::{Body, On},
};
use countersign_config::HttpConfig;
use countersign_domain::changes::{Change, ChangeState, Verdict, digest::hex, export::ExportLine};
use countersign_protocol::ErrorKind;
use countersign_review::{ChangeFilter, Changes, DecideChange, DecideError, EditChange};
use countersign_store::{AuditSearch, Narrow};

/// Returns the problem of a decision that was not made, with the change as it is now.
pub fn decide_problem(error: DecideError) -> Problem {
    Problem::from(error.error).with_change(error.current)
}

fn id(request: &HttpRequest) -> Result<&str, Problem> {
    path_id(request).ok_or_else(no_such_change)
}

fn no_such_change() -> Problem {
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
        criteria: Narrow {
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
pub async fn one(_: Caller, request: HttpRequest, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let mut change = changes.get(id(&request)?).await?.ok_or_else(no_such_change)?;
    changes.note_waits(std::slice::from_mut(&mut change)).await?;
    json_of(change.estimated_size(), change).await
}

/// A change as it is now.
async fn answer(decided: Result<Arc<Change>, DecideError>) -> Result<HttpResponse, Problem> {
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
pub async fn decide(asked: On<DecisionBody>, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let On { id, reviewer, body } = asked;
    let decision = DecideChange {
        id,
        reviewer,
        verdict: body.decision,
        comment: body::comment(body.comment)?,
        version: body.version,
        digest: body.digest,
        bulk: false,
    };
    answer(changes.decide(decision).await).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditBody {
    arguments: Box<RawValue>,
    version: u64,
    comment: Option<String>,
}

impl Body for EditBody {
    /// As large as what an agent may send.
    fn most(http: &HttpConfig) -> usize {
        http.max_body
    }
}

/// `POST /api/changes/{id}/edit`
pub async fn edit(asked: On<EditBody>, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let On { id, reviewer, body } = asked;
    let edit = EditChange {
        id,
        reviewer,
        arguments: body.arguments,
        version: body.version,
        comment: body::comment(body.comment)?,
    };
    answer(changes.edit(edit).await).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionBody {
    version: u64,
}

impl Body for VersionBody {}

/// `POST /api/changes/{id}/undo`
pub async fn undo(asked: On<VersionBody>, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let On { id, reviewer, body } = asked;
    answer(changes.undo(&id, &reviewer, body.version).await).await
}

/// `POST /api/changes/{id}/refresh`
pub async fn refresh(asked: On<VersionBody>, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let On { id, reviewer, body } = asked;
    answer(changes.refresh(&id, &reviewer, body.version).await).await
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
pub async fn settle(asked: On<SettleBody>, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let On { id, reviewer, body } = asked;
    let applied = matches!(body.outcome, SettledAs::Applied);
    let comment = body::comment(body.comment)?;
    answer(changes.settle(&id, &reviewer, applied, comment, body.version).await).await
}

/// `GET /api/audit?change=&event=&actor=&q=&since=&until=&limit=&cursor=`, newest first, with the head of the whole trail
/// and what the changes are called that the entries are about.
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
