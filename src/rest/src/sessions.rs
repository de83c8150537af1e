//! Lists the sessions of clients.

use std::{cmp::Reverse, fmt, str::FromStr};

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Caller, Problem, Query, json_response,
    page::{self, PageParams},
};
use countersign_exchange::state::short_session_id;
use countersign_session::{Registry, registry::SessionInfo};

/// Provides the sessions that the endpoints show.
pub trait SessionSource: Send + Sync + 'static {
    fn list_sessions(&self) -> Vec<SessionInfo>;
}

impl SessionSource for Registry {
    fn list_sessions(&self) -> Vec<SessionInfo> {
        self.describe_all()
    }
}

/// The key by which sessions are sorted: newest first, and those of one moment by the beginning of their ids.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SessionSortKey(Reverse<i128>, String);

impl SessionSortKey {
    fn new(session: &SessionInfo) -> Self {
        Self(Reverse(session.created_at.as_nanosecond()), short_session_id(&session.id).to_owned())
    }
}

impl fmt::Display for SessionSortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.0, self.1)
    }
}

impl FromStr for SessionSortKey {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (created, id) = text.split_once('.').unwrap_or((text, ""));
        Ok(Self(Reverse(created.parse()?), id.to_owned()))
    }
}

/// A page of sessions.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SessionPage {
    sessions: Vec<SessionInfo>,
    #[schema(required)]
    next_cursor: Option<String>,
    /// The number of sessions on all pages.
    total: usize,
    /// The number of requests being answered in all sessions.
    in_flight: usize,
}

/// Lists live sessions of clients, newest first.
#[utoipa::path(get, path = "/api/sessions", operation_id = "listSessions", params(PageParams), responses(
    (status = 200, description = "A page of sessions", body = SessionPage)))]
pub async fn list(
    _: Caller,
    request: HttpRequest,
    source: web::Data<dyn SessionSource>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["limit", "cursor"])?;
    let mut sessions = source.list_sessions();
    let (total, in_flight) = (sessions.len(), sessions.iter().map(|session| session.in_flight).sum());
    sessions.sort_by_cached_key(SessionSortKey::new);
    let page = page::cut_by_key(&query, sessions, SessionSortKey::new)?;
    Ok(json_response(&SessionPage { sessions: page.items, next_cursor: page.next_cursor, total, in_flight }))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn session_id_is_shown_shortened_without_its_node() {
        for id in ["V1StGXR8_Z5jdHi6B-myTabcdefghijk", "nOdE_0-123.V1StGXR8_Z5jdHi6B-myTabcdefghijk"] {
            check_shown(id);
        }
    }

    fn check_shown(id: &str) {
        let info = SessionInfo {
            id: id.into(),
            transport: "http".into(),
            revision: Some("2025-11-25".into()),
            client_name: None,
            client_version: None,
            principal: "local-agent".into(),
            created_at: Timestamp::UNIX_EPOCH,
            last_active_at: Timestamp::UNIX_EPOCH,
            connected: true,
            in_flight: 2,
        };
        let json = serde_json::to_value(&info).unwrap();
        assert_eq!(json["id"], "V1StGXR8…");
        assert_eq!(json["inFlight"], 2);
        assert_eq!(json["clientName"], serde_json::Value::Null);
    }
}
