//! `search_issues`: the full-text search over keys, titles, descriptions and comments.
//!
//! A query consists of words. Each word is quoted, so that no text of a caller can be a syntax error of the database.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    arguments::{ProjectRef, SearchIssues},
    checks::not_found,
    db::{Db, DbResult, values},
    model::ListedIssue,
    render::{self, answer},
    rows::{LISTED_ISSUE_COLUMNS, find_project, listed_issue_query, read_listed_issue},
    words::Terms,
};
use countersign_protocol::McpError;
use countersign_provider::{ToolResult, text::one_line};

/// The maximum number of words of a query. Further words are ignored.
const MAX_WORDS: usize = 24;

/// A parsed query. Its last word may be the beginning of a longer word.
pub(super) enum SearchQuery<'q> {
    /// The words, for FTS5 of SQLite.
    Fts5(Vec<&'q str>),
    /// The terms, for a `tsquery` of PostgreSQL.
    TsQuery(Terms),
}

impl<'q> SearchQuery<'q> {
    /// Parses a query for this database. Returns `None` if it has no word.
    pub fn parse(db: Db<'_>, query: &'q str) -> Option<Self> {
        let words: Vec<&str> = query
            .split(|c: char| c.is_whitespace() || c.is_control())
            .filter(|word| word.chars().any(char::is_alphanumeric))
            .take(MAX_WORDS)
            .collect();
        match db {
            Db::Sqlite(_) => (!words.is_empty()).then_some(Self::Fts5(words)),
            Db::Postgres(_) => Terms::parse(&words).map(Self::TsQuery),
        }
    }

    /// Returns the query in the syntax of the database. All words must occur if `match_all` is set, otherwise any of
    /// them.
    pub fn text(&self, match_all: bool) -> String {
        match self {
            Self::Fts5(words) => match_expression(words, match_all),
            Self::TsQuery(terms) => terms.expression(match_all),
        }
    }

    /// Returns the condition that the issue `i` matches the query text in a parameter of the statement.
    pub fn condition(&self, parameter: &str) -> String {
        match self {
            Self::Fts5(_) => format!("i.id IN (SELECT rowid FROM issue_fts WHERE issue_fts MATCH {parameter})"),
            Self::TsQuery(_) => format!("i.words @@ CAST({parameter} AS text)::tsquery"),
        }
    }
}

/// Returns an expression for `MATCH` of FTS5.
fn match_expression(words: &[&str], match_all: bool) -> String {
    let mut terms: Vec<String> = words.iter().map(|word| format!("\"{}\"", word.replace('"', "\"\""))).collect();
    // The search for a prefix of a single letter would match too many texts.
    if let Some(term) = terms.last_mut()
        && words.last().is_some_and(|word| word.chars().count() > 1)
    {
        term.push_str(" *");
    }
    terms.join(if match_all { " AND " } else { " OR " })
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SearchAnswer {
    results: Vec<Hit>,
    /// # Partial
    /// True if no issue has all words, so that the results have only some of them.
    partial: bool,
    has_more: bool,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Hit {
    #[serde(flatten)]
    issue: ListedIssue,
    /// # Snippet
    /// An excerpt with the matching words in brackets.
    snippet: String,
    #[schemars(extend("enum" = ["text", "comments"]))]
    matched_in: &'static str,
}

/// Searches issues, and answers with the best matches first.
pub(super) fn search(db: Db<'_>, args: &SearchIssues) -> Result<ToolResult, McpError> {
    let project = match &args.project_id {
        Some(ProjectRef(entity)) => {
            Some(find_project(db, entity)?.ok_or_else(|| not_found("project", entity.as_str(), "/projectId"))?.row)
        }
        None => None,
    };
    let (mut results, mut partial, mut has_more) = (Vec::new(), false, false);
    if let Some(query) = SearchQuery::parse(db, &args.query) {
        (results, has_more) = find_hits(db, &query, true, project, args.limit.0)?;
        if results.is_empty() {
            (results, has_more) = find_hits(db, &query, false, project, args.limit.0)?;
            partial = !results.is_empty();
        }
    }
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

/// Returns at most `limit` hits, and `true` if there are more.
fn find_hits(
    db: Db<'_>,
    query: &SearchQuery<'_>,
    match_all: bool,
    project: Option<i64>,
    limit: usize,
) -> DbResult<(Vec<Hit>, bool)> {
    // Matches in keys weigh most, then those in titles, in descriptions, and in comments. `origin` is 0 for an issue
    // and 1 for a comment, and `source` is its row.
    let hits_clause = match query {
        SearchQuery::Fts5(_) => {
            "WITH found AS ( \
                 SELECT rowid AS issue, bm25(issue_fts, 12.0, 6.0, 1.0) * 2.0 AS score, 0 AS origin, rowid AS source \
                 FROM issue_fts WHERE issue_fts MATCH ?1 \
                 UNION ALL \
                 SELECT c.issue, bm25(comment_fts), 1, c.id \
                 FROM comment_fts JOIN comments c ON c.id = comment_fts.rowid WHERE comment_fts MATCH ?1), \
             hits AS (SELECT issue, MIN(score) AS score, origin, source FROM found GROUP BY issue)"
        }
        SearchQuery::TsQuery(_) => {
            "WITH found AS ( \
                 SELECT id AS issue, -2 * ts_rank('{0.08, 0.1, 0.5, 1.0}', words, CAST(?1 AS text)::tsquery) AS score, \
                 0 AS origin, id AS source FROM issues WHERE words @@ CAST(?1 AS text)::tsquery \
                 UNION ALL \
                 SELECT issue, -ts_rank('{0.08, 0.1, 0.5, 1.0}', words, CAST(?1 AS text)::tsquery), 1, id \
                 FROM comments WHERE words @@ CAST(?1 AS text)::tsquery), \
             hits AS (SELECT DISTINCT ON (issue) issue, score, origin, source FROM found \
                 ORDER BY issue, score, origin, source)"
        }
    };
    let listed_issues = listed_issue_query(", h.origin, h.source", "hits h JOIN issues i ON i.id = h.issue");
    let sql = format!(
        "{hits_clause} {listed_issues} WHERE CAST(?2 AS BIGINT) IS NULL OR i.project = ?2 \
         ORDER BY h.score, i.id DESC LIMIT ?3"
    );
    let query_text = query.text(match_all);
    let mut rows: Vec<(ListedIssue, i64, i64)> =
        db.query_all(&sql, values![&query_text, project, limit + 1], |row| {
            Ok((read_listed_issue(row)?, row.get(LISTED_ISSUE_COLUMNS)?, row.get(LISTED_ISSUE_COLUMNS + 1)?))
        })?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let mut hits = Vec::with_capacity(rows.len());
    for (issue, origin, source) in rows {
        let is_issue = origin == 0;
        // Only hits that are returned get a snippet, which costs more than the search.
        let snippet = snippet(db, query, &query_text, is_issue, source)?;
        hits.push(Hit { issue, snippet, matched_in: if is_issue { "text" } else { "comments" } });
    }
    Ok((hits, has_more))
}

/// Returns an excerpt with matches from the issue or comment in this row. `query_text` is [`SearchQuery::text`].
fn snippet(db: Db<'_>, query: &SearchQuery<'_>, query_text: &str, is_issue: bool, row: i64) -> DbResult<String> {
    match query {
        SearchQuery::Fts5(_) => {
            let table = if is_issue { "issue_fts" } else { "comment_fts" };
            let sql = format!(
                "SELECT snippet({table}, -1, '[', ']', '…', 16) FROM {table} WHERE {table} MATCH ?1 AND rowid = ?2"
            );
            db.query_one(&sql, values![query_text, row], |row| row.get(0))
        }
        SearchQuery::TsQuery(terms) => {
            let sql = if is_issue {
                "SELECT key, title, description FROM issues WHERE id = ?1"
            } else {
                "SELECT content, '', '' FROM comments WHERE id = ?1"
            };
            db.query_one(sql, values![row], |row| Ok(terms.snippet(&[row.get(0)?, row.get(1)?, row.get(2)?])))
        }
    }
}
