//! `GET /api/audit/export`: the audit trail, or the entries between two times, as a file.

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, HeaderValue, X_CONTENT_TYPE_OPTIONS},
    web::{self, Bytes},
};
use futures_util::stream;
use jiff::Timestamp;

use super::{Caller, FeedAccess, Problem, Query};
use countersign_domain::changes::export::{ExportFormat, TimeRange};
use countersign_exchange::slots::StreamSlot;
use countersign_protocol::{ErrorKind, McpError};
use countersign_review::Changes;

/// Number of entries that are read at a time.
const PAGE_ENTRIES: usize = 200;

struct Export {
    changes: Changes,
    format: ExportFormat,
    range: TimeRange,
    /// The header of the file, until it is written.
    header: Option<String>,
    /// The number of the last entry that was read; entries outside `range` are skipped.
    after: u64,
    /// The number of the last entry when the export started.
    end: u64,
    _slot: StreamSlot,
}

/// Exports the audit trail as a file, the oldest entry first.
///
/// The file is streamed; an error ends the stream early. JSON lines contain everything that the hashes cover. In CSV, a cell
/// that a spreadsheet would run as a formula begins with an apostrophe.
#[utoipa::path(get, path = "/api/audit/export", operation_id = "exportAudit",
    params(
        ("format" = Option<String>, Query, description = "`jsonl`, the default, or `csv`.",
            pattern = "^(jsonl|csv)$"),
        ("since" = Option<Timestamp>, Query, description = "Only entries at or after this time."),
        ("until" = Option<Timestamp>, Query, description = "Only entries before this time.")),
    responses((status = 200, description = "The file",
        content((String = "application/jsonl"), (String = "text/csv")))))]
pub async fn export(
    caller: Caller,
    request: HttpRequest,
    changes: web::Data<Changes>,
    feed: web::Data<FeedAccess>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["format", "since", "until"])?;
    let format = ExportFormat::parse(query.get("format").unwrap_or("jsonl"))
        .ok_or_else(|| Problem::new(ErrorKind::InvalidParams, "format must be jsonl or csv"))?;
    let range = TimeRange { since: query.time("since")?, until: query.time("until")? };
    let slot = feed.streams.take(&caller.principal.name)?;
    let end = changes.audit_head().await?.seq;
    let header = Some(format.header()).filter(|header| !header.is_empty());
    let export = Export { changes: Changes::clone(&changes), format, range, header, after: 0, end, _slot: slot };
    let body = stream::try_unfold(export, |mut export| async move {
        let chunk = export.next().await?;
        Ok::<_, McpError>(chunk.map(|chunk| (chunk, export)))
    });
    let name = format!(
        "attachment; filename=\"countersign-audit-{}.{}\"",
        Timestamp::now().strftime("%F"),
        format.extension()
    );
    Ok(HttpResponse::Ok()
        .content_type(format.media_type())
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-store")))
        .insert_header((X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")))
        .insert_header((CONTENT_DISPOSITION, name))
        .streaming(body))
}

impl Export {
    /// Returns the next bytes, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, McpError> {
        if let Some(header) = self.header.take() {
            return Ok(Some(header.into()));
        }
        while self.after < self.end {
            let entries = self.changes.audit_after(self.after, PAGE_ENTRIES).await?;
            let Some(last) = entries.last() else { break };
            self.after = last.seq;
            let mut text = String::new();
            for entry in entries.iter().filter(|entry| entry.seq <= self.end && self.range.contains(entry)) {
                self.format.write_entry(entry, &mut text);
            }
            if !text.is_empty() {
                return Ok(Some(text.into()));
            }
        }
        Ok(None)
    }
}
