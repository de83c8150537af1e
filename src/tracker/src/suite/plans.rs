//! Tests that previews continue where an earlier step of a plan ends.

use serde_json::{Value, json};

use super::Fixture;
use countersign_domain::changes::{
    plan::{compose_over, is_written_by},
    testing::first_step,
};

#[tokio::test]
async fn second_write_is_shown_over_the_first_one() {
    let t = Fixture::empty();
    let project = t.create_project("CORE").await;
    let status = |name: &str| ("update_status", json!({ "newStatus": name }));
    let title = |text: &str| ("update_issue", json!({ "title": text }));
    let comment = ("add_comment", json!({ "content": "Seen" }));
    for (first, second) in [
        (status("Todo"), status("Cancelled")),
        (title("New"), title("Newer")),
        (title("New"), status("Todo")),
        (title("New"), comment),
    ] {
        let issue = t.create_issue(&project, "Bug", "Old", None).await;
        let with_issue = |(tool, mut arguments): (&'static str, Value)| {
            arguments["issueId"] = issue.as_str().into();
            (tool, arguments)
        };
        let ((first_tool, first), (second_tool, second)) = (with_issue(first), with_issue(second));
        let step = first_step("tracker", t.preview(first_tool, first.clone()).await.unwrap());
        let mut shown = t.preview(second_tool, second.clone()).await.unwrap();
        assert!(is_written_by(&step, "tracker", &shown));
        compose_over(&mut shown, [&step]);
        t.call(first_tool, first).await.unwrap();
        let present = t.preview(second_tool, second).await.unwrap();
        assert_eq!((shown.operation, shown.target), (present.operation, present.target));
        assert_eq!((shown.summary, shown.diff), (present.summary, present.diff));
    }
}
