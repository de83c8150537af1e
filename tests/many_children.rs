//! Many children, one after the other: alone in its process, so that what is left can be counted.

#![allow(clippy::unwrap_used, reason = "test code")]

use support::children::*;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test]
async fn hundred_children_leave_nothing_behind() {
    // What the runtime needs itself.
    drop(Child::start(&[]).await);
    wait_until("no zombie", || zombie_guards() == 0).await;
    let before = descriptors();
    let mut markers = Vec::new();
    for round in 0..20 {
        let flags: &[&str] = match round % 4 {
            0 => &["daemon"],
            1 => &["stay"],
            _ => &[],
        };
        let children = futures_util::future::join_all((0..5).map(|_| Child::start(flags))).await;
        for (n, child) in children.into_iter().enumerate() {
            markers.push(child.marker.clone());
            match n {
                0 => child.link.close(),
                1 => assert!(child.call("exit", r#"{"status":1}"#).await.is_err()),
                2 => assert!(child.call("suicide", "{}").await.is_err()),
                _ => {
                    child.result("echo", "{}").await;
                }
            }
        }
    }
    assert_eq!(markers.len(), 100);
    wait_until("no process", || markers.iter().all(|marker| processes_with(marker).is_empty())).await;
    wait_until("no zombie", || zombie_guards() == 0).await;
    wait_until("no descriptor", || descriptors() <= before).await;
}
