//! `search_issues`: full text over keys, titles, descriptions and comments.
//!
//! A query is words, never the database's syntax: each word is quoted, so that no text a caller sends can be a syntax
//! error.

use std::fmt::Write as _;

use serde::Serialize;

use super::{
    db::{Db, Sql, failed, values},
    queries::Search,
    refs::not_found,
    render::{self, answer},
    rows::{IssueLine, find_project, line_sql},
    words::Wanted,
};
use countersign_protocol::McpError;
use countersign_provider::{ToolResult, text::one_line};

/// Words of a query that count.
const WORDS: usize = 24;

/// A query as the database takes it: every word must occur (or any, if not all), the last one may be a beginning.
pub(super) enum Expression<'q> {
    /// FTS5.
    File(Vec<&'q str>),
    Server(Wanted),
}

impl<'q> Expression<'q> {
    /// `None` if nothing in it can be searched for.
    pub fn of(db: Db<'_>, query: &'q str) -> Option<Self> {
        let words: Vec<&str> = query
            .split(|c: char| c.is_whitespace() || c.is_control())
            .filter(|word| word.chars().any(char::is_alphanumeric))
            .take(WORDS)
            .collect();
        match db {
            Db::File(_) => (!words.is_empty()).then_some(Self::File(words)),
            Db::Server(_) => Wanted::of(&words).map(Self::Server),
        }
    }

    pub fn text(&self, all: bool) -> String {
        match self {
            Self::File(words) => match_expression(words, all),
            Self::Server(wanted) => wanted.expression(all),
        }
    }

    /// Returns the condition that the words of `issues i` fit the text in that place.
    pub fn condition(&self, place: &str) -> String {
        match self {
            Self::File(_) => format!("i.id IN (SELECT rowid FROM issue_fts WHERE issue_fts MATCH {place})"),
            Self::Server(_) => format!("i.words @@ CAST({place} AS text)::tsquery"),
        }
    }
}

fn match_expression(words: &[&str], all: bool) -> String {
    let last = words.len().saturating_sub(1);
    let mut out = String::new();
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            out.push_str(if all { " AND " } else { " OR " });
        }
        let _ = write!(out, "\"{}\"", word.replace('"', "\"\""));
        // A single letter would match half of everything.
        if at == last && word.chars().count() > 1 {
            out.push_str(" *");
        }
    }
    out
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
pub(super) fn search(db: Db<'_>, args: &Search) -> Result<ToolResult, McpError> {
    let project = match &args.project {
        Some(by) => {
            let found = find_project(db, by).map_err(|e| failed(&e))?;
            Some(found.ok_or_else(|| not_found("project", by.text()).with("pointer", "/projectId"))?.rowid)
        }
        None => None,
    };
    let (mut results, mut partial) = (Vec::new(), false);
    let wanted = Expression::of(db, &args.query);
    for all in [true, false] {
        let Some(wanted) = &wanted else { break };
        results = find(db, wanted, all, project, args.limit + 1).map_err(|e| failed(&e))?;
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

fn find(db: Db<'_>, wanted: &Expression<'_>, all: bool, project: Option<i64>, limit: usize) -> Sql<Vec<Hit>> {
    // A hit in a key weighs most, then titles, then descriptions; comments come after them.
    let sql = match wanted {
        Expression::File(_) => concat!(
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
            "WHERE CAST(?2 AS BIGINT) IS NULL OR i.project = ?2 ORDER BY h.score, i.id DESC LIMIT ?3"
        ),
        Expression::Server(_) => concat!(
            line_sql!(
                "WITH found AS ( \
                     SELECT id AS issue, -2 * ts_rank('{0.08, 0.1, 0.5, 1.0}', words, CAST(?1 AS text)::tsquery) AS score, \
                     0 AS place, id AS source FROM issues WHERE words @@ CAST(?1 AS text)::tsquery \
                     UNION ALL \
                     SELECT issue, -ts_rank('{0.08, 0.1, 0.5, 1.0}', words, CAST(?1 AS text)::tsquery), 1, id \
                     FROM comments WHERE words @@ CAST(?1 AS text)::tsquery), \
                 hits AS (SELECT DISTINCT ON (issue) issue, score, place, source FROM found \
                     ORDER BY issue, score, place, source) ",
                ", h.place, h.source",
                "hits h JOIN issues i ON i.id = h.issue"
            ),
            "WHERE CAST(?2 AS BIGINT) IS NULL OR i.project = ?2 ORDER BY h.score, i.id DESC LIMIT ?3"
        ),
    };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let expression = wanted.text(all);
    let lines: Vec<(IssueLine, i64, i64)> = db.all(sql, values![&expression, project, limit], |row| {
        Ok((IssueLine::from_row(row)?, row.get(13)?, row.get(14)?))
    })?;
    let mut hits = Vec::with_capacity(lines.len());
    for (issue, place, source) in lines {
        // Only of what is shown: snippets cost more than the search.
        let snippet = snippet(db, wanted, &expression, place == 0, source)?;
        hits.push(Hit { issue, snippet, matched_in: if place == 0 { "text" } else { "comments" } });
    }
    Ok(hits)
}

fn snippet(db: Db<'_>, wanted: &Expression<'_>, expression: &str, in_text: bool, source: i64) -> Sql<String> {
    match wanted {
        Expression::File(_) => {
            let sql = if in_text {
                "SELECT snippet(issue_fts, -1, '[', ']', '…', 16) FROM issue_fts WHERE issue_fts MATCH ?1 AND rowid = ?2"
            } else {
                "SELECT snippet(comment_fts, -1, '[', ']', '…', 16) FROM comment_fts \
                 WHERE comment_fts MATCH ?1 AND rowid = ?2"
            };
            db.one(sql, values![expression, source], |row| row.get(0))
        }
        Expression::Server(wanted) => {
            let sql = if in_text {
                "SELECT key, title, description FROM issues WHERE id = ?1"
            } else {
                "SELECT content, '', '' FROM comments WHERE id = ?1"
            };
            db.one(sql, values![source], |row| Ok(wanted.snippet(&[row.get(0)?, row.get(1)?, row.get(2)?])))
        }
    }
}
