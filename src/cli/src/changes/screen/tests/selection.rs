//! Tests of decisions on selected changes.

use super::*;

#[test]
fn all_selected_are_decided_in_requests_of_100() {
    let all: Vec<Change> = (0..250).map(|n| change(&format!("chg_{n}"), 1, "pending")).collect();
    let mut app = app("reviewer", &all, (90, 24));
    app.selected = all.iter().map(|change| change.id.clone()).collect();
    assert_eq!(type_keys(&mut app, "rno"), None);
    assert!(screen(&mut app).contains("Comment for 250 x rejection: no"));
    let Some(Action::Decide(bodies)) = press(&mut app, KeyCode::Enter) else { panic!("no decision") };
    let bodies: Vec<Value> = bodies.iter().map(|body| serde_json::from_str(body).unwrap()).collect();
    let counts: Vec<usize> = bodies.iter().map(|body| body["changes"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [100, 100, 50]);
    assert!(bodies.iter().all(|body| body["decision"] == "reject" && body["comment"] == "no"));
    assert_eq!(bodies[2]["changes"][49]["id"], "chg_249");
}
