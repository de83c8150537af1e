//! Tests of the screen as text and of the keys, without a terminal.

mod bundles;
mod deputies;
mod plans;
mod selection;

use std::collections::BTreeMap;

use jiff::Timestamp;
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};
use serde_json::{Value, json};

use super::{
    draw,
    model::{Action, App, ListedChange},
    paint::Theme,
};
use crate::client::CurrentUser;
use countersign_domain::changes::{Change, ChangeState};

fn now() -> Timestamp {
    "2027-01-01T00:05:00Z".parse().unwrap()
}

fn value(id: &str, version: u64, state: &str) -> Value {
    json!({
        "id": id, "version": version, "state": state,
        "proposer": {"principal": "local-agent", "clientName": "cli\u{1b}[2Jent", "transport": "http"},
        "provider": "files", "tool": "write_file", "toolTitle": "Write file", "toolHash": "sha256:t",
        "arguments": {"path": "/a", "n": 1}, "operation": "UPDATE",
        "target": {"entityType": "file", "id": "/a", "label": "/a", "lockKey": "/a"},
        "summary": "Write “a\u{202e}b”\nforged", "preview": {"kind": "before_after"},
        "diff": {"fields": [{"field": "text", "label": "Text", "before": "old", "after": "new\tx\u{200b}"}], "truncated": false},
        "fingerprint": "sha256:f", "digest": format!("sha256:{id}-{version}"), "terms": {}, "decisions": [],
        "createdAt": "2027-01-01T00:00:00Z", "updatedAt": "2027-01-01T00:00:00Z", "expiresAt": "2027-01-02T00:00:00Z",
    })
}

fn change_with(id: &str, version: u64, state: &str, more: &Value) -> Change {
    let mut value = value(id, version, state);
    for (key, part) in more.as_object().unwrap() {
        value[key] = part.clone();
    }
    serde_json::from_str(&value.to_string()).unwrap()
}

fn change(id: &str, version: u64, state: &str) -> Change {
    change_with(id, version, state, &json!({}))
}

fn app(role: &str, changes: &[Change], size: (u16, u16)) -> App {
    let may_decide = role == "reviewer";
    let me = CurrentUser {
        name: "alice".into(),
        role: role.into(),
        owner: "alice".into(),
        key_id: Some("key_1".into()),
        other_names: vec!["https://id.example#alice".into()],
        groups: vec!["ops".into()],
        may_decide,
        ..CurrentUser::default()
    };
    let mut app = App::new(me, Theme { colour: false, unicode: true }, now());
    app.size = size;
    app.is_feed_connected = true;
    let counts = BTreeMap::from([(ChangeState::Pending, changes.len() as u64)]);
    app.add_page(true, changes.iter().map(ListedChange::from_change).collect(), counts, false);
    app
}

fn screen(app: &mut App) -> String {
    let mut terminal = Terminal::new(TestBackend::new(app.size.0, app.size.1)).unwrap();
    app.layout();
    terminal.draw(|frame| draw::screen(app, frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer
        .content
        .chunks(usize::from(app.size.0))
        .map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned());
    rows.collect::<Vec<_>>().join("\n")
}

fn press(app: &mut App, code: KeyCode) -> Option<Action> {
    let action = app.handle_key(KeyEvent::new(code, KeyModifiers::NONE));
    screen(app);
    action
}

fn type_keys(app: &mut App, text: &str) -> Option<Action> {
    text.chars().fold(None, |last, c| press(app, KeyCode::Char(c)).or(last))
}

/// Returns the path and the body of a request.
fn post(action: Option<Action>) -> (String, Value) {
    match action {
        Some(Action::Post { path, body, .. }) => (path.join("/"), serde_json::from_str(&body).unwrap()),
        Some(Action::Decide(bodies)) => ("decisions".to_owned(), serde_json::from_str(&bodies[0]).unwrap()),
        other => panic!("{other:?}"),
    }
}

fn open(app: &mut App, change: Change) {
    assert_eq!(press(app, KeyCode::Enter), Some(Action::Open(change.id.clone())));
    app.update_change(change, true);
    screen(app);
}

#[test]
fn list_shows_changes_and_counts() {
    let quorum = change_with("chg_2", 1, "pending", &json!({"terms": {"quorum": 2}, "duplicateOf": "chg_1"}));
    let mut app = app("reviewer", &[change("chg_1", 1, "pending"), quorum], (90, 6));
    app.selected.insert("chg_1".into());
    let expected = r" ● live  pending 2  stale 0  unknown 0  selected 1, 0 read  [inbox]  alice (reviewer)
x pending    5m local-agent    Write “a\u{202e}b”\nforged
  pending    5m local-agent    0/2 duplicate Write “a\u{202e}b”\nforged


 j k Enter  x A  / s g  ? help  q quit";
    let shown = screen(&mut app);
    assert_eq!(shown, expected, "\n{shown}");
}

#[test]
fn detail_shows_change_and_diff() {
    let mut app = app("reviewer", &[change("chg_1", 3, "pending")], (64, 22));
    open(&mut app, change("chg_1", 3, "pending"));
    let expected = r#" ● live  pending 1  stale 0  unknown 0  [inbox]  alice (reviewe…
 Write “a\u{202e}b”\nforged
 pending  UPDATE file /a
 Write file (files / write_file), proposed by local-agent with
 cli\u{1b}[2Jent over http, 5m ago; chg_1 v3
 0 of 1 approval; expires in 23h

  Text
  - old
  + new→   x\u{200b}

 Arguments
   path: "/a"
   n: 1







 a approve  r reject  e edit  j k next  q back  ? help"#;
    let shown = screen(&mut app);
    assert_eq!(shown, expected, "\n{shown}");
    // Without UTF-8 there is nothing but ASCII.
    app.theme.unicode = false;
    app.size = (63, 22);
    let shown = screen(&mut app);
    assert!(shown.is_ascii() && shown.contains(r"\u{201c}a\u{202e}b\u{201d}"), "{shown}");
}

#[test]
fn every_screen_size_is_drawn() {
    for size in [(40, 10), (20, 4), (5, 3), (1, 1), (200, 60)] {
        let stale = change_with("chg_1", 2, "stale", &json!({"previousDiff": {"fields": []}}));
        let mut app = app("reviewer", &[stale.clone(), change("chg_2", 1, "pending")], size);
        screen(&mut app);
        open(&mut app, stale);
        type_keys(&mut app, "dz?");
        screen(&mut app);
        type_keys(&mut app, "xr");
        type_keys(&mut app, "some reason that is longer than the line");
        press(&mut app, KeyCode::Esc);
        type_keys(&mut app, "qgs/");
    }
}

#[test]
fn approval_covers_only_the_shown_version() {
    let mut app = app("reviewer", &[change("chg_1", 1, "pending")], (80, 24));
    // From the list, a change is opened and not approved.
    assert_eq!(type_keys(&mut app, "a"), Some(Action::Open("chg_1".into())));
    app.update_change(change("chg_1", 1, "pending"), true);
    screen(&mut app);
    // The change is updated while it is shown: the next key decides nothing.
    app.update_change(change("chg_1", 2, "pending"), false);
    screen(&mut app);
    assert_eq!(type_keys(&mut app, "a"), None);
    assert!(app.status.0.contains("just changed"), "{:?}", app.status);
    let (path, body) = post(type_keys(&mut app, "a"));
    assert_eq!(path, "changes/chg_1/decision");
    assert_eq!(body, json!({"decision": "approve", "comment": null, "version": 2, "digest": "sha256:chg_1-2"}));
    // The refusal was reported, so one more key decides on what is shown now.
    app.expected_change = Some("chg_1".into());
    app.update_change(change("chg_1", 3, "pending"), false);
    screen(&mut app);
    assert_eq!(post(type_keys(&mut app, "a")).1["version"], 3);
    app.update_change(change("chg_1", 4, "pending"), false);
    assert_eq!(type_keys(&mut app, "a"), None, "the update was not announced to the user");
    // A late answer does not revert the shown change.
    app.update_change(change("chg_1", 1, "pending"), false);
    assert_eq!(app.detail.as_ref().unwrap().change.version, 4);
}

#[test]
fn approving_an_unread_diff_asks_first() {
    let text: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    let field = json!({"field": "t", "label": "T", "before": null, "after": text.join("\n")});
    let long = change_with("chg_1", 1, "pending", &json!({"diff": {"fields": [field], "truncated": false}}));
    let mut app = app("reviewer", std::slice::from_ref(&long), (80, 24));
    open(&mut app, long);
    assert_eq!(type_keys(&mut app, "an"), None);
    assert!(app.prompt.is_none());
    // A jump to the end is not reading it.
    press(&mut app, KeyCode::End);
    assert_eq!(type_keys(&mut app, "a"), None);
    assert_eq!(post(type_keys(&mut app, "y")).0, "changes/chg_1/decision");
    press(&mut app, KeyCode::Home);
    for _ in 0..4 {
        press(&mut app, KeyCode::PageDown);
    }
    assert_eq!(post(type_keys(&mut app, "a")).0, "changes/chg_1/decision");
}

#[test]
fn required_comment_is_prompted_for() {
    let strict = change_with("chg_1", 1, "pending", &json!({"terms": {"requireComment": true}}));
    let mut app = app("reviewer", std::slice::from_ref(&strict), (80, 24));
    open(&mut app, strict);
    type_keys(&mut app, "a");
    assert_eq!(press(&mut app, KeyCode::Enter), None);
    assert!(app.status.0.contains("requires a comment"));
    type_keys(&mut app, "fin");
    press(&mut app, KeyCode::Backspace);
    let (_, body) = post(press(&mut app, KeyCode::Enter));
    assert_eq!((&body["decision"], &body["comment"]), (&json!("approve"), &json!("fi")));
    type_keys(&mut app, "rno");
    app.paste(" way\n\u{1b}[2J");
    let (_, body) = post(press(&mut app, KeyCode::Enter));
    assert_eq!((&body["decision"], &body["comment"]), (&json!("reject"), &json!("no way [2J")));
}

#[test]
fn viewer_cannot_decide() {
    for key in ["a", "r", "e", "u", "f", "o", "xA"] {
        let mut app = app("viewer", &[change("chg_1", 1, "pending")], (80, 24));
        open(&mut app, change("chg_1", 1, "pending"));
        assert_eq!(type_keys(&mut app, key), None, "{key}");
        assert!(app.prompt.is_none() && app.status.0.contains("cannot decide"), "{key}");
    }
}

#[test]
fn approval_is_not_offered_to_barred_reviewers() {
    let own = json!({"proposer": {"principal": "alice", "transport": "stdio"}});
    let owned = json!({"proposer": {"principal": "laptop", "owner": "Alice", "transport": "stdio"}});
    let claims = json!({"otherNames": ["https://id.example#alice"], "json": "{}"});
    let agent = json!({"proposer": {"principal": "https://id.example#a1#cli", "claims": claims, "transport": "http"}});
    let voted = json!({"terms": {"quorum": 2}, "decisions": [{
        "reviewer": "desk", "owner": "alice", "verdict": "approve", "at": "2027-01-01T00:01:00Z", "version": 1
    }]});
    let voted_by_deputy = json!({"terms": {"quorum": 2}, "decisions": [{
        "reviewer": "dora", "deputyFor": {"name": "desk", "owner": "alice"}, "verdict": "approve",
        "at": "2027-01-01T00:01:00Z", "version": 1
    }]});
    let not_asked = json!({"terms": {"reviewers": ["dba"]}});
    let escalating = json!({"terms": {"reviewers": ["dba"], "escalate": {"after": 9_000_000_000_u64, "to": ["ops"]}}});
    let blind = json!({"terms": {"previewRequired": true}, "preview": {"kind": "arguments"}});
    let sign_in = json!({"terms": {"signIn": {"maxAge": 300}}});
    for (more, why) in [
        (own, "You proposed this change, so somebody else has to approve it."),
        (owned, "with a key of the same owner as yours, so somebody else has to approve it."),
        (agent, "An agent proposed this change in your name, so somebody else has to approve it."),
        (voted, "You have approved this. One more approval is needed."),
        (voted_by_deputy, "Your deputy has approved this for you. One more approval is needed."),
        (not_asked, "Under this rule only dba can decide, and you are not one of them."),
        (escalating, "Under this rule only dba can decide, and you are not one of them."),
        (blind, "The rule requires a preview and there is none"),
        (sign_in, "The rule requires another sign-in, so this can only be approved in the dashboard."),
    ] {
        let change = change_with("chg_1", 1, "pending", &more);
        let mut app = app("reviewer", std::slice::from_ref(&change), (120, 24));
        open(&mut app, change);
        let shown = screen(&mut app);
        assert!(shown.contains(why) && shown.contains(" r reject") && !shown.contains("a approve"), "{shown}");
        for key in ["a", "W"] {
            assert_eq!(type_keys(&mut app, key), None, "{why}");
            assert!(app.prompt.is_none() && app.status.0.contains(why), "{:?}", app.status);
        }
        assert_eq!(type_keys(&mut app, "qxA"), None);
        assert!(app.status.0.contains(why) && app.status.0.ends_with("x deselects it."), "{:?}", app.status);
    }
    let escalated = json!({"reviewers": ["dba"], "escalate": {"after": 1, "to": ["ops"]}});
    for terms in [json!({"reviewers": ["ops"]}), json!({"reviewers": ["reviewer"]}), escalated] {
        let is_escalated = terms.get("escalate").is_some();
        let change = change_with("chg_1", 1, "pending", &json!({"terms": terms}));
        let mut app = app("reviewer", std::slice::from_ref(&change), (120, 24));
        open(&mut app, change);
        let shown = screen(&mut app);
        assert!(shown.contains("a approve") && shown.contains("now also by ops") == is_escalated, "{shown}");
        assert_eq!(post(type_keys(&mut app, "a")).0, "changes/chg_1/decision");
    }
    let awaiting = json!({"terms": {"previewRequired": true}, "preview": {"kind": "arguments", "awaitsResults": true}});
    let change = change_with("chg_1", 1, "pending", &awaiting);
    let mut app = app("reviewer", std::slice::from_ref(&change), (120, 24));
    open(&mut app, change);
    let shown = screen(&mut app);
    assert!(shown.contains("a approve") && shown.contains("again with results of earlier steps"), "{shown}");
}

#[test]
fn selected_are_approved_after_all_were_opened() {
    let all = [change("chg_1", 1, "pending"), change("chg_2", 1, "pending")];
    let mut app = app("reviewer", &all, (80, 24));
    type_keys(&mut app, "xx");
    assert_eq!(app.selected.len(), 2);
    for change in &all {
        assert_eq!(type_keys(&mut app, "A"), Some(Action::Open(change.id.clone())));
        app.update_change(change.clone(), true);
        screen(&mut app);
    }
    type_keys(&mut app, "A");
    // One of them was updated in the meantime, so it is shown again.
    app.update_change(change("chg_1", 2, "pending"), false);
    assert_eq!(press(&mut app, KeyCode::Enter), Some(Action::Open("chg_1".into())));
    app.update_change(change("chg_1", 2, "pending"), true);
    screen(&mut app);
    type_keys(&mut app, "Aok");
    let (path, body) = post(press(&mut app, KeyCode::Enter));
    assert_eq!(path, "decisions");
    let expected = [("chg_1", 2), ("chg_2", 1)]
        .map(|(id, version)| json!({"id": id, "version": version, "digest": format!("sha256:{id}-{version}")}));
    assert_eq!(body, json!({"decision": "approve", "comment": "ok", "changes": expected}));
    let problem = json!({"title": "T", "detail": "no\u{1b}", "code": "SELF_APPROVAL"});
    app.show_results(
        &json!({"results": [{"id": "chg_1", "change": {"state": "approved"}}, {"id": "chg_2", "problem": problem}]}),
    );
    let shown = screen(&mut app);
    assert!(shown.contains(" approved  Write") && shown.contains(r" no\u{1b} (SELF_APPROVAL)  Write"), "{shown}");
    assert_eq!(app.selected.iter().collect::<Vec<_>>(), ["chg_2"]);
}

#[test]
fn stale_change_shows_old_and_new_diff() {
    let before = json!({"fields": [{"field": "text", "label": "Text", "before": "OLD", "after": "new"}]});
    let stale = change_with("chg_1", 2, "stale", &json!({"previousDiff": before}));
    let mut app = app("reviewer", std::slice::from_ref(&stale), (121, 30));
    open(&mut app, stale.clone());
    let shown = screen(&mut app);
    let line = shown.lines().find(|l| l.contains("- OLD")).unwrap();
    assert!(line.contains("║   - old"), "{shown}");
    let expected = ("changes/chg_1/refresh".to_owned(), json!({"version": 2}));
    assert_eq!(post(type_keys(&mut app, "f")), expected);
    assert_eq!(post(type_keys(&mut app, "a")), expected);
    // On a narrow screen, the two diffs follow one another.
    app.size = (60, 30);
    let shown = screen(&mut app);
    assert!(shown.find("- OLD").unwrap() < shown.find("- old").unwrap(), "{shown}");
}

#[test]
fn edited_arguments_are_sent_with_a_comment() {
    let mut app = app("reviewer", &[change("chg_1", 1, "pending")], (80, 24));
    open(&mut app, change("chg_1", 1, "pending"));
    let Some(Action::Editor { id, version, text }) = type_keys(&mut app, "e") else { panic!("no editor") };
    app.submit_edit(id.clone(), version, &text, format!("{text}\n"));
    assert!(app.prompt.is_none() && app.status.0.contains("not changed"));
    app.submit_edit(id.clone(), version, &text, "{oops".into());
    assert!(app.status.0.contains("opens your text again"), "{:?}", app.status);
    assert!(matches!(type_keys(&mut app, "e"), Some(Action::Editor { text, .. }) if text == "{oops"));
    app.submit_edit(id, version, &text, r#"{"n": 12345678901234567890.10}"#.into());
    type_keys(&mut app, "typo");
    let Some(Action::Post { path, body, .. }) = press(&mut app, KeyCode::Enter) else { panic!("no request") };
    assert_eq!(path, ["changes", "chg_1", "edit"]);
    assert_eq!(body, r#"{"arguments":{"n": 12345678901234567890.10},"version":1,"comment":"typo"}"#);
    let fixed = change_with("chg_2", 1, "pending", &json!({"terms": {"edit": "forbidden"}}));
    app.update_change(fixed.clone(), false);
    app.detail = None;
    app.arrange(Some("chg_2"));
    open(&mut app, fixed);
    assert_eq!(type_keys(&mut app, "e"), None);
    assert!(app.status.0.contains("allows no edits"));
}

#[test]
fn approval_can_be_undone_within_its_time() {
    let approved =
        change_with("chg_1", 2, "approved", &json!({"runAfter": "2027-01-01T00:05:30Z", "terms": {"undoFor": 60}}));
    let mut app = app("reviewer", &[approved.clone(), change("chg_2", 1, "pending")], (80, 24));
    open(&mut app, approved);
    let shown = screen(&mut app);
    assert!(shown.contains("u undoes it, 31s left"), "{shown}");
    assert_eq!(post(type_keys(&mut app, "u")), ("changes/chg_1/undo".to_owned(), json!({"version": 2})));
    type_keys(&mut app, "qj");
    // The cursor is elsewhere, so the last approval is undone.
    assert_eq!(type_keys(&mut app, "u"), None);
    app.last_approved = Some("chg_1".into());
    assert_eq!(post(type_keys(&mut app, "u")).0, "changes/chg_1/undo");
}

#[test]
fn unknown_outcome_is_settled() {
    let mut app = app("reviewer", &[change("chg_1", 5, "outcome_unknown")], (80, 24));
    open(&mut app, change("chg_1", 5, "outcome_unknown"));
    type_keys(&mut app, "ox");
    type_keys(&mut app, "fread it");
    let expected = json!({"outcome": "failed", "comment": "read it", "version": 5});
    assert_eq!(post(press(&mut app, KeyCode::Enter)), ("changes/chg_1/settle".to_owned(), expected));
}

#[test]
fn list_follows_feed_events() {
    let mut app = app("reviewer", &[change("chg_2", 1, "pending"), change("chg_3", 1, "pending")], (80, 24));
    type_keys(&mut app, "j");
    assert_eq!(app.at_cursor().unwrap().id, "chg_3");
    app.update_change(change_with("chg_4", 1, "pending", &json!({"createdAt": "2027-01-01T00:04:00Z"})), false);
    assert_eq!(app.changes[0].id, "chg_4");
    assert_eq!(app.at_cursor().unwrap().id, "chg_3", "the cursor stays where it was");
    app.update_change(change("chg_2", 2, "applied"), false);
    assert_eq!(app.changes.len(), 2);
    type_keys(&mut app, "ssss");
    assert_eq!((app.view().name, app.query()), ("all", Vec::new()));
    type_keys(&mut app, "gg");
    let shown = screen(&mut app);
    assert!(shown.contains("▾ files.write_file (2)") && shown.contains("[all] by tool"), "{shown}");
    type_keys(&mut app, "/by:bob fix");
    assert_eq!(press(&mut app, KeyCode::Enter), Some(Action::Load));
    assert_eq!(app.query(), [("principal", "bob".to_owned()), ("q", "fix".to_owned())]);
    assert_eq!(press(&mut app, KeyCode::Esc), Some(Action::Load));
    assert_eq!(press(&mut app, KeyCode::Char('q')), Some(Action::Quit));
}

#[test]
fn next_change_is_not_skipped() {
    let all = ["chg_1", "chg_2", "chg_3"].map(|id| change(id, 1, "pending"));
    let mut app = app("reviewer", &all, (80, 24));
    open(&mut app, all[0].clone());
    // The first change is done, and no longer in the list.
    app.update_change(change("chg_1", 2, "applied"), true);
    assert_eq!(type_keys(&mut app, "j"), Some(Action::Open("chg_2".into())));
    app.update_change(all[1].clone(), true);
    assert_eq!(type_keys(&mut app, "j"), Some(Action::Open("chg_3".into())));
}

#[test]
fn cursor_skips_group_headings() {
    let call_of = |id: &str, tool: &str| change_with(id, 1, "pending", &json!({"tool": tool}));
    let mut app = app("reviewer", &[call_of("a", "x"), call_of("b", "y"), call_of("c", "x")], (80, 24));
    type_keys(&mut app, "gg");
    let mut seen = Vec::new();
    press(&mut app, KeyCode::Home);
    for _ in 0..4 {
        seen.push(app.at_cursor().unwrap().id.clone());
        type_keys(&mut app, "j");
    }
    assert_eq!(seen, ["a", "c", "b", "b"]);
    press(&mut app, KeyCode::End);
    assert_eq!(app.at_cursor().unwrap().id, "b");
    type_keys(&mut app, "kk");
    assert_eq!(app.at_cursor().unwrap().id, "a");
}

#[test]
fn failed_preview_is_shown_and_approved_by_its_own_key() {
    let failed = json!({
        "preview": {"kind": "arguments", "failed": "read_file answered: no such file"}, "operation": "CALL",
        "diff": {"fields": [
            {"field": "path", "label": "path", "after": "/a"}, {"field": "n", "label": "n", "after": "1"},
            {"field": "$description", "label": "Tool description", "after": "Writes a file."}]},
    });
    let blind = || change_with("chg_1", 1, "pending", &failed);
    let mut app = app("reviewer", &[blind()], (100, 24));
    open(&mut app, blind());
    let shown = screen(&mut app);
    assert!(shown.contains("The preview failed, so only the arguments are shown: read_file answered"), "{shown}");
    assert!(shown.contains("W approve without preview") && !shown.contains(" a approve"), "{shown}");
    assert_eq!(
        (shown.matches("/a\"").count(), shown.matches("n: 1").count()),
        (1, 1),
        "the arguments are shown once: {shown}"
    );
    assert!(shown.contains("Tool description"), "{shown}");
    assert_eq!(type_keys(&mut app, "a"), None);
    assert!(app.status.0.contains("W approves without preview"), "{:?}", app.status);
    assert_eq!(type_keys(&mut app, "Wn"), None);
    let (path, body) = post(type_keys(&mut app, "Wy"));
    assert_eq!((path.as_str(), &body["decision"]), ("changes/chg_1/decision", &json!("approve")));
    // A change without a preview is not approved in a bulk decision either.
    press(&mut app, KeyCode::Esc);
    assert_eq!(type_keys(&mut app, "xA"), Some(Action::Open("chg_1".into())));
    assert!(app.status.0.contains("The preview of this one failed"), "{:?}", app.status);
    // Without a recipe, no preview is missing.
    let plain = change_with("chg_1", 2, "pending", &json!({"preview": {"kind": "arguments"}, "operation": "CALL"}));
    app.update_change(plain, true);
    app.status.0.clear();
    let shown = screen(&mut app);
    assert!(shown.contains("No preview is available for this tool") && shown.contains("a approve"), "{shown}");
}
