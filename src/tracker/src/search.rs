//! `search_issues`: full text over keys, titles, descriptions and comments.
//!
//! A query is words, never FTS5 syntax: each word is quoted, so that no text a caller sends can be a syntax error.

use std::fmt::Write as _;

use rusqlite::{Connection, params};
use serde::Serialize;

use super::{
    queries::Search,
    refs::not_found,
    render::{self, answer},
    rows::{IssueLine, Sql, find_project, line_sql},
    storage::failed,
};
use countersign_protocol::McpError;
use countersign_provider::{ToolResult, text::one_line};

/// Words of a query that count.
const WORDS: usize = 24;

/// The query as an FTS5 expression: every word must occur (or any, if not `all`), the last one may be a beginning.
/// `None` if nothing in it can be searched for.
pub(super) fn match_expression(query: &str, all: bool) -> Option<String> {
    let words: Vec<String> = query
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| word.chars().any(char::is_alphanumeric))
        .take(WORDS)
        .map(|word| word.replace('"', "\"\""))
        .collect();
    let last = words.len().checked_sub(1)?;
    let mut out = String::with_capacity(query.len() + words.len() * 8);
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            out.push_str(if all { " AND " } else { " OR " });
        }
        let _ = write!(out, "\"{word}\"");
        // A single letter would match half of everything.
        if at == last && word.chars().count() > 1 {
            out.push_str(" *");
        }
    }
    Some(out)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Hit {
    #[serde(flatten)]
    issue: IssueLine,
    /// Where it was found, with the words in brackets.
    snippet: String,
    matched_in: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SearchAnswer {
    results: Vec<Hit>,
    /// No issue has all words; these have some.
    partial: bool,
    has_more: bool,
}

/// Best first.
pub(super) fn search(conn: &Connection, args: &Search) -> Result<ToolResult, McpError> {
    let project = match &args.project {
        Some(by) => {
            let found = find_project(conn, by).map_err(|e| failed(&e))?;
            Some(found.ok_or_else(|| not_found("project", by.text()).with("pointer", "/projectId"))?.rowid)
        }
        None => None,
    };
    let (mut results, mut partial) = (Vec::new(), false);
    for all in [true, false] {
        let Some(expression) = match_expression(&args.query, all) else { break };
        results = find(conn, &expression, project, args.limit + 1).map_err(|e| failed(&e))?;
        if !results.is_empty() {
            partial = !all;
            break;
        }
    }
    let has_more = results.len() > args.limit;
    results.truncate(args.limit);
    let mut text = String::new();
    if results.is_empty() {
        text.push_str("Nothing found.\n");
    } else if partial {
        text.push_str("No issue has all these words; these have some:\n");
    }
    for hit in &results {
        render::issue_line(&mut text, &hit.issue);
        let _ = writeln!(text, "  in its {}: {}", hit.matched_in, one_line(&hit.snippet, 300));
    }
    if has_more {
        text.push_str("There are more; add words to narrow it.\n");
    }
    answer(&text, &SearchAnswer { results, partial, has_more })
}

fn find(conn: &Connection, expression: &str, project: Option<i64>, limit: usize) -> Sql<Vec<Hit>> {
    // A hit in a key weighs most, then titles, then descriptions; comments come after them.
    let sql = concat!(
        line_sql!(
            "WITH found AS ( \
                 SELECT rowid AS issue, bm25(issue_fts, 12.0, 6.0, 1.0) * 2.0 AS score, 0 AS place, rowid AS source \
                 FROM issue_fts WHERE issue_fts MATCH ?1 \
                 UNION ALL \
                 SELECT c.issue, bm25(comment_fts), 1, c.id \
                 FROM comment_fts JOIN comments c ON c.id = comment_fts.rowid WHERE comment_fts MATCH ?1), \
             hits AS (SELECT issue, MIN(score) AS score, place, source FROM found GROUP BY issue) ",
            ", h.place, h.source",
            "hits h JOIN issues i ON i.id = h.issue"
        ),
        "WHERE ?2 IS NULL OR i.project = ?2 ORDER BY h.score, i.id DESC LIMIT ?3"
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let lines: Vec<(IssueLine, i64, i64)> = conn
        .prepare_cached(sql)?
        .query_map(params![expression, project, limit], |row| {
            Ok((IssueLine::from_row(row)?, row.get(13)?, row.get(14)?))
        })?
        .collect::<Sql<_>>()?;
    // Snippets only of what is shown: they cost more than the search.
    let mut in_text = conn.prepare_cached(
        "SELECT snippet(issue_fts, -1, '[', ']', '…', 16) FROM issue_fts WHERE issue_fts MATCH ?1 AND rowid = ?2",
    )?;
    let mut in_comment = conn.prepare_cached(
        "SELECT snippet(comment_fts, -1, '[', ']', '…', 16) FROM comment_fts WHERE comment_fts MATCH ?1 AND rowid = ?2",
    )?;
    let mut hits = Vec::with_capacity(lines.len());
    for (issue, place, source) in lines {
        let (statement, matched_in) = if place == 0 { (&mut in_text, "text") } else { (&mut in_comment, "comments") };
        let snippet = statement.query_row(params![expression, source], |row| row.get(0))?;
        hits.push(Hit { issue, snippet, matched_in });
    }
    Ok(hits)
}
