//! Steps of plans on the screen.

use super::*;

#[test]
fn plan_of_an_approved_step_can_be_stopped() {
    let plan = json!({"plan": {"id": "plan_1", "title": "Move", "index": 0, "last": true}});
    let step = change_with("chg_1", 2, "approved", &plan);
    let mut inbox = app("reviewer", std::slice::from_ref(&step), (80, 24));
    open(&mut inbox, step);
    assert!(screen(&mut inbox).contains("r stop its plan"));
    type_keys(&mut inbox, "rno");
    let (path, body) = post(press(&mut inbox, KeyCode::Enter));
    assert_eq!((path.as_str(), &body["decision"]), ("changes/chg_1/decision", &json!("reject")));
    let single = change("chg_2", 2, "approved");
    let mut inbox = app("reviewer", std::slice::from_ref(&single), (80, 24));
    open(&mut inbox, single);
    assert_eq!(type_keys(&mut inbox, "r"), None);
    assert!(inbox.status.0.contains("there is nothing to reject"), "{}", inbox.status.0);
}
