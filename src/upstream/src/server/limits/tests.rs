use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::*;
use countersign_config::{UpstreamTarget, UrlTransport};
use countersign_protocol::RequestId;

#[tokio::test(start_paused = true)]
async fn queue_is_bounded_and_times_out() {
    let call_slots = CallSlots::new(1, 1);
    let first = call_slots.acquire(Duration::ZERO).await.unwrap();
    let (second, third) =
        tokio::join!(call_slots.acquire(Duration::from_secs(5)), call_slots.acquire(Duration::from_secs(5)));
    assert_eq!(second.unwrap_err(), "no call slot became free in time (max_in_flight)");
    assert_eq!(third.unwrap_err(), "too many calls wait for this server (max_queue)");
    assert_eq!((call_slots.in_use(), call_slots.queued()), (1, 0));
    let (next, ()) = tokio::join!(call_slots.acquire(Duration::from_secs(5)), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(first);
    });
    assert!(next.is_ok());
    assert_eq!((call_slots.in_use(), call_slots.queued()), (1, 0));
}

#[test]
fn first_matching_glob_sets_tool_timeout() {
    let target = UpstreamTarget::Url { urls: vec![], headers: vec![], transport: UrlTransport::Auto };
    let mut config = UpstreamConfig::new("x", target);
    let seconds = Duration::from_secs;
    config.timeout = seconds(60);
    config.tool_timeouts = vec![("slow_*".into(), seconds(600)), ("*".into(), seconds(5))];
    let timeouts = CallTimeouts::new(&config);
    assert_eq!(timeouts.for_call("tools/call", Some("slow_one")), seconds(600));
    assert_eq!(timeouts.for_call("tools/call", Some("other")), seconds(5));
    assert_eq!(timeouts.for_call("tools/call", None), seconds(60));
    assert_eq!(timeouts.for_call("prompts/get", Some("slow_one")), seconds(60));
}

#[derive(Default)]
struct QuestionKeeper(Mutex<Vec<UpstreamRequest>>);
impl Listener for QuestionKeeper {
    fn handle_request(&self, request: UpstreamRequest) {
        self.0.lock().push(request);
    }
}

fn question() -> UpstreamRequest {
    UpstreamRequest {
        id: RequestId::from_raw("\"1\""),
        method: "elicitation/create".into(),
        params: None,
        reply: Replier::new(|_| {}),
        cancelled: CancellationToken::new(),
    }
}

async fn seconds_until_expired(clock: &CallClock) -> u64 {
    let began = Instant::now();
    clock.wait_until_expired().await;
    began.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn clock_is_suspended_while_question_is_open() {
    let keeper = Arc::new(QuestionKeeper::default());
    let clock = CallClock::new(Weak::new(), keeper.clone(), Duration::from_secs(10));
    let (elapsed_secs, ()) = tokio::join!(seconds_until_expired(&clock), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        clock.handle_request(question());
        clock.handle_request(question());
        tokio::time::sleep(Duration::from_secs(100)).await;
        let first = keeper.0.lock().pop().unwrap();
        first.reply.answer(Ok(Box::<RawValue>::default()));
        tokio::time::sleep(Duration::from_secs(100)).await;
        keeper.0.lock().clear();
    });
    assert_eq!(elapsed_secs, 210);
}

#[tokio::test(start_paused = true)]
async fn progress_during_suspension_restarts_clock_after_it() {
    let keeper = Arc::new(QuestionKeeper::default());
    let clock = CallClock::new(Weak::new(), keeper.clone(), Duration::from_secs(10));
    let (elapsed_secs, ()) = tokio::join!(seconds_until_expired(&clock), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        clock.handle_request(question());
        tokio::time::sleep(Duration::from_secs(50)).await;
        clock.handle_notification(UpstreamNotification { method: "notifications/progress".into(), params: None });
        tokio::time::sleep(Duration::from_secs(50)).await;
        keeper.0.lock().clear();
    });
    assert_eq!(elapsed_secs, 115);
}

#[tokio::test(start_paused = true)]
async fn progress_extends_deadline_up_to_maximum() {
    let clock = CallClock::new(Weak::new(), Arc::new(QuestionKeeper::default()), Duration::from_secs(10));
    let progress = async {
        loop {
            tokio::time::sleep(Duration::from_secs(4)).await;
            clock.handle_notification(UpstreamNotification { method: "notifications/progress".into(), params: None });
        }
    };
    tokio::select! {
        elapsed_secs = seconds_until_expired(&clock) => assert_eq!(elapsed_secs, 100),
        () = progress => {}
    }
}
