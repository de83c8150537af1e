//! Formats hits for clients: as JSON for programs, and as text for models.

use serde_json::{Value, json};

use crate::model::{Collection, Hit, Level};
use countersign_provider::text::one_line;

/// Characters of a title or a path on a line.
const MAX_LINE: usize = 200;

fn rounded(score: f64) -> f64 {
    (score * 10_000.0).round() / 10_000.0
}

/// Returns the location of a passage.
pub(super) fn location_json(hit: &Hit) -> Value {
    json!({
        "path": hit.path,
        "title": hit.title,
        "char_count": hit.char_count,
        "relevance_score": rounded(hit.score),
        "promotion_level": hit.level,
        "header_path": hit.header_path,
        "first_line": hit.passage.first_line,
        "last_line": hit.passage.last_line,
    })
}

pub(super) fn hit_json(hit: &Hit, collection: Collection) -> Value {
    let mut json = location_json(hit);
    json["summary"] = hit.summary.as_str().into();
    json["passage"] = hit.passage.text.as_str().into();
    if collection == Collection::Docs {
        json["doc_type"] = json!(hit.doc_type);
        json["date"] = json!(hit.date);
    }
    json
}

pub(super) fn hit_line(hit: &Hit) -> String {
    let Hit { path, title, score, passage, level, .. } = hit;
    let level = if *level == Level::Standard { String::new() } else { format!(", {level}") };
    format!(
        "{} — {} (relevance {:.2}{level}, lines {}–{})\n{}",
        one_line(title, MAX_LINE),
        one_line(path, MAX_LINE),
        score,
        passage.first_line,
        passage.last_line,
        passage.text
    )
}
