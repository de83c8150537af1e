use proptest::prelude::*;

use super::*;
use crate::text::front_matter::{self, with_level};

fn read(path: &str, text: &str) -> Document {
    parse(path, text, &DocTypes::built_in()).unwrap()
}

#[test]
fn front_matter_wins_over_text() {
    let text = "---\ndoc_type: problem\ntitle: Pool\ndate: 2026-01-02\nsummary: It ran dry\npromotion_level: critical\n---\n\
                # Another\n\nSee [it](../tools/x.md) and [it](../tools/x.md#a).\n";
    let document = read("problems/pool.md", text);
    assert_eq!((document.title.as_str(), document.summary.as_str()), ("Pool", "It ran dry"));
    assert_eq!((document.doc_type.as_deref(), document.date.as_deref()), (Some("problem"), Some("2026-01-02")));
    assert_eq!((document.level, document.links.as_slice()), (Level::Critical, &["tools/x.md".to_owned()][..]));
    let [chunk] = document.chunks.as_slice() else { panic!("{document:?}") };
    assert_eq!((chunk.header_path.as_str(), chunk.first_line, chunk.last_line), ("", 8, 10));

    let bare = read("tools/x.md", "Text `code`\nmore\n\n# The heading\n");
    assert_eq!((bare.title.as_str(), bare.summary.as_str()), ("The heading", "Text code more"));
    assert_eq!((bare.doc_type.as_deref(), bare.level), (Some("tool"), Level::Standard));
    let nothing = read("notes/my note.md", "");
    assert_eq!((nothing.title.as_str(), nothing.doc_type, nothing.chunks.len()), ("my note", None, 0));
    assert_eq!(read("a.md", "---\na: [\n---\nText").title, "a", "what cannot be read is left out");
}

fn long(sections: usize, lines: usize) -> String {
    let mut text = "# Title\n\nBefore all.\n\n".to_owned();
    for section in 0..sections {
        text.push_str(&format!("## Section {section}\n\n"));
        for line in 0..lines {
            text.push_str(&format!("Line {line} of {section}.\n{}", if line % 5 == 4 { "\n" } else { "" }));
        }
        text.push_str("### Part\n\n```sh\n## no heading\n\n### none\n```\n\n");
    }
    text
}

#[test]
fn only_long_documents_are_cut_at_headings() {
    assert_eq!(read("a.md", &long(3, 20)).chunks.len(), 1);
    let document = read("a.md", &long(10, 50));
    let paths: Vec<&str> = document.chunks.iter().map(|chunk| chunk.header_path.as_str()).collect();
    assert_eq!(paths[..4], ["", "## Section 0", "## Section 0 > ### Part", "## Section 1"]);
    assert_eq!(paths.len(), 21, "{paths:?}");
    assert!(document.chunks[2].passages[0].text.ends_with("### none\n```"), "a block of code is whole");
}

#[test]
fn long_sections_are_cut_and_empty_ones_dropped() {
    let text = format!("# T\n\n## Empty\n\n## Long\n\n{}", "A line.\nAnother.\n\n".repeat(1500));
    let document = read("a.md", &text);
    assert!(document.chunks.iter().all(|chunk| chunk.header_path != "## Empty"));
    let long: Vec<_> = document.chunks.iter().filter(|chunk| chunk.header_path == "## Long").collect();
    assert!(long.len() >= 4 && long.iter().all(|chunk| chunk.last_line - chunk.first_line < 1000), "{}", long.len());
    assert!(long.iter().skip(1).all(|chunk| chunk.passages[0].text.starts_with("A line.")));
    let code = format!("# T\n\n## Code\n\n```\n{}```\n", "x\n\n".repeat(700));
    let chunks = read("a.md", &code).chunks;
    assert!(chunks.iter().any(|chunk| chunk.last_line - chunk.first_line > 1300), "a block of code is never cut");
}

#[test]
fn hostile_documents_are_read_within_bounds() {
    for text in ["\u{feff}\0\u{202e}", "[a](", "> > > > # x", "```", "| a |\n|-", "---\n---\n---", "[x]: y.md\n[x]"] {
        read("a.md", text);
    }
    let deep = format!("{}x", "> ".repeat(5000));
    read("a.md", &deep);
    let line = "word ".repeat(400_000);
    let document = read("a.md", &line);
    assert!(document.chunks[0].passages.iter().all(|passage| passage.text.len() <= 20_000));
    assert!(document.summary.chars().count() <= 301);
    let links = "[a](b.md) ".repeat(5000);
    assert_eq!(read("a.md", &links).links, ["b.md"]);
}

#[test]
fn texts_are_joined_and_cut_after_their_characters() {
    assert_eq!(super::one_line(" a\n\tb ", 3), "a b");
    assert_eq!(super::one_line(&"ä ".repeat(1000), 5), "ä ä ä…");
    assert_eq!(super::one_line("word", 2), "wo…");
}

/// Generates a document of so many parts.
type Make = fn(usize) -> String;

/// Returns the steps that parsing a document takes.
fn steps(text: &str) -> u64 {
    let mut budget = Budget::new();
    super::parse_with_fields("a.md", text, &DocTypes::built_in(), &Map::new(), &mut budget).unwrap();
    budget.steps
}

#[test]
fn parsing_time_is_linear() {
    let deep: Make = |n| (0..n).map(|position| format!("{}- a\n", " ".repeat(position % 200))).collect();
    let cases: [(&str, Make); 10] = [
        ("headings", |n| "# h\n".repeat(n)),
        ("sections", |n| "## h\n\nx\n\n".repeat(n)),
        ("lines", |n| "a\n".repeat(n)),
        ("blank lines", |n| "\n".repeat(n)),
        ("paragraphs", |n| "a\n\n".repeat(n)),
        ("code", |n| format!("```\n{}", "\nx\n".repeat(n))),
        ("brackets", |n| "[".repeat(n) + &"](a)".repeat(n)),
        ("lists", deep),
        ("containers", |n| format!("{}x\n\n", "> - 1. x\n".repeat(n))),
        ("links", |n| (0..n).map(|position| format!("[r{position}]: /u\n\n[r{position}]\n\n")).collect()),
    ];
    for (name, text) in cases {
        let (short_steps, long_steps) = (steps(&text(5_000)), steps(&text(10_000)));
        assert!(long_steps <= 2 * short_steps + short_steps / 10, "{name}: {short_steps} and {long_steps}");
        assert!(short_steps <= 75_000, "{name}: {short_steps}");
    }
}

#[test]
fn document_over_the_time_limit_is_refused() {
    let text = "# h\n".repeat(10_000);
    let mut budget = Budget::with_deadline(std::time::Instant::now());
    let read = super::parse_with_fields("a.md", &text, &DocTypes::built_in(), &Map::new(), &mut budget);
    assert_eq!(read.unwrap_err(), TooSlowError);
    assert!(budget.steps < 10_000, "and it ends soon: {}", budget.steps);
    // The parser's time grows with the lines and the containers around each.
    let nested: [(&str, Make); 7] = [
        ("lists", |n| format!("{}x\n{}", "+ ".repeat(n), "y\n".repeat(n))),
        ("lists of tabs", |n| format!("{}x\n{}", "-\t".repeat(n), "y\n".repeat(n))),
        ("numbered lists", |n| format!("{}x\n{}", "1. ".repeat(n), "y\n".repeat(n))),
        ("quotes", |n| format!("{}x\n{}", ">".repeat(n), "y\n".repeat(n))),
        ("quoted lists", |n| format!("{}x\n{}", "> 1) ".repeat(n / 2), "y\n".repeat(n))),
        ("indented lists", |n| (0..n).map(|position| format!("{}- x\n", " ".repeat(position.min(2000) * 2))).collect()),
        ("footnotes", |n| format!("{}x\n{}", "> [^a\\]:b]: ".repeat(n / 2), "y\n".repeat(n))),
    ];
    for (name, text) in nested {
        let mut budget = Budget::new();
        let mut read = |n: usize| {
            super::parse_with_fields("a.md", &text(n), &DocTypes::built_in(), &Map::new(), &mut budget).map(drop)
        };
        assert_eq!((read(50), read(40_000)), (Ok(()), Err(TooSlowError)), "{name}");
        assert!(budget.steps < 100_000, "{name} ends before it is parsed: {}", budget.steps);
    }
}

fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[a-z ]{1,60}",
        "#{1,4} [a-z]{1,10}",
        Just("```".to_owned()),
        Just("---".to_owned()),
        "[-*>|] [a-z]{1,20}",
        "\\PC{0,40}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_line_is_in_one_chunk_and_one_passage_in_order(lines in proptest::collection::vec(line(), 0..900)) {
        let text = lines.join("\n");
        let document = read("a.md", &text);
        let all: Vec<&str> = text.lines().collect();
        let mut next = split_document(&text).yaml.map_or(0, |_| text[..split_document(&text).body].lines().count());
        let mut passage_texts: Vec<String> = Vec::new();
        for chunk in &document.chunks {
            prop_assert_eq!(chunk.first_line, chunk.passages[0].first_line);
            prop_assert_eq!(chunk.last_line, chunk.passages.last().unwrap().last_line);
            for passage in &chunk.passages {
                let (first, last) = (passage.first_line as usize - 1, passage.last_line as usize);
                prop_assert!(first >= next && last > first, "{first} {last} {next}");
                for skipped in &all[next..first] {
                    // Headings with nothing below them, and blank lines.
                    prop_assert!(skipped.trim().is_empty() || document.chunks.len() > 1, "{skipped:?}");
                }
                prop_assert_eq!(&passage.text, &all[first..last].join("\n"));
                passage_texts.push(passage.text.clone());
                next = last;
            }
        }
        if document.chunks.len() == 1 {
            prop_assert!(all[next..].iter().all(|line| line.trim().is_empty()));
        }
    }

    #[test]
    fn level_round_trips(lines in proptest::collection::vec(line(), 0..30)) {
        let text = lines.join("\n");
        let written = with_level(&text, Level::Important);
        let is_unread = front_matter::block(&text).is_none() && front_matter::begins_front_matter(&text);
        prop_assert_eq!(written.is_some(), !is_unread && front_matter::parse_fields(&text).is_ok());
        if let Some(written) = written {
            prop_assert_eq!(read("a.md", &written).level, Level::Important);
            let changed = written.lines().filter(|line| !text.lines().any(|old| old == *line)).count();
            prop_assert!(changed <= 3);
        }
    }
}
