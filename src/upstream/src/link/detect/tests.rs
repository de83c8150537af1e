use tokio_util::sync::CancellationToken;

use super::*;
use crate::testing::{RecordingListener, ScriptedConnector, error, result};
use countersign_protocol::rpc_error::RpcError;

const DISCOVER_RESULT: &str = r#"{"resultType":"complete","supportedVersions":["2025-11-25","2026-07-28"],"capabilities":{"tools":{}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"m","version":"1"}},"ttlMs":5000}"#;
const INITIALIZE_RESULT: &str = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{ "x":1.0 }},"serverInfo":{"name":"l","version":"1"},"instructions":"do"}"#;

fn listener() -> Arc<dyn Listener> {
    Arc::new(RecordingListener::default())
}

async fn run_detection(scripted: ScriptedConnector) -> (Result<DetectionResult, LinkError>, Vec<String>) {
    let scripted = Arc::new(scripted);
    let detected = detect(scripted.clone(), listener()).await;
    (detected, scripted.sent_methods())
}

/// Returns a server that answers discovery with `discovery`, and `initialize` as a handshake-era server.
fn server(
    kind: LinkKind,
    discovery: impl Fn() -> Result<Response, LinkError> + Send + Sync + 'static,
) -> ScriptedConnector {
    ScriptedConnector::new(kind, move |method, _| match method {
        "server/discover" => discovery(),
        "initialize" => result(INITIALIZE_RESULT),
        other => panic!("{other}"),
    })
}

#[tokio::test]
async fn stateless_era_is_preferred() {
    for kind in [LinkKind::Streams, LinkKind::SingleStream] {
        let (detected, sent) = run_detection(server(kind, || result(DISCOVER_RESULT))).await;
        let detected = detected.unwrap();
        assert_eq!((detected.era(), detected.negotiated.revision), (Era::Modern, Revision::MODERN));
        assert_eq!(detected.negotiated.capabilities.get(), r#"{"tools":{}}"#);
        assert_eq!(detected.negotiated.server_info.unwrap().get(), r#"{"name":"m","version":"1"}"#);
        assert_eq!(sent, ["connect", "server/discover", "opened 2026-07-28"]);
    }
}

#[tokio::test]
async fn server_without_discovery_is_of_handshake_era() {
    let status = |status| Err(LinkError::Status { status, body: String::new() });
    let answers: [fn() -> Result<Response, LinkError>; 8] = [
        || result("{}"),
        || result(r#"{"supportedVersions":["2025-11-25"],"capabilities":{}}"#),
        || result(r#"{"supportedVersions":"2026-07-28"}"#),
        || result("[]"),
        || error(-32601, None),
        || error(-32602, Some("{}")),
        || error(-32000, None),
        || Err(LinkError::Protocol("{}".into())),
    ];
    for answer in answers {
        for kind in [LinkKind::Streams, LinkKind::SingleStream] {
            let (detected, sent) = run_detection(server(kind, answer)).await;
            let detected = detected.unwrap();
            assert_eq!((detected.era(), detected.negotiated.revision), (Era::Legacy, Revision::V2025_06_18));
            assert_eq!(detected.negotiated.capabilities.get(), r#"{"tools":{ "x":1.0 }}"#);
            assert_eq!(detected.negotiated.instructions.as_deref(), Some("do"));
            assert_eq!(
                sent,
                [
                    "connect",
                    "server/discover",
                    "close",
                    "connect",
                    "initialize",
                    "opened 2025-06-18",
                    "notifications/initialized"
                ]
            );
        }
    }
    for code in [200, 202, 400, 404, 405, 406, 415, 422] {
        assert_eq!(
            run_detection(server(LinkKind::Streams, move || status(code))).await.0.unwrap().era(),
            Era::Legacy,
            "{code}"
        );
    }
}

#[tokio::test]
async fn era_is_unknown_without_an_answer() {
    for code in [301, 307, 401, 403, 407, 429, 500, 502, 503] {
        let (detected, sent) = run_detection(server(LinkKind::Streams, move || {
            Err(LinkError::Status { status: code, body: String::new() })
        }))
        .await;
        assert!(matches!(detected, Err(LinkError::Status { status, .. }) if status == code));
        assert_eq!(sent, ["connect", "server/discover", "close"]);
    }
    for error in [LinkError::Unreachable("x".into()), LinkError::Lost("x".into())] {
        assert!(run_detection(server(LinkKind::Streams, move || Err(error.clone()))).await.0.is_err());
    }
    let with_status = || {
        let Ok(Response::Error(error)) = error(-32001, None) else { unreachable!() };
        Ok(Response::Error(RpcError { status: Some(401), ..error }))
    };
    assert!(matches!(
        run_detection(server(LinkKind::Streams, with_status)).await.0,
        Err(LinkError::Status { status: 401, .. })
    ));
}

#[tokio::test]
async fn child_that_dies_of_probe_is_of_handshake_era() {
    let (detected, sent) =
        run_detection(server(LinkKind::SingleStream, || Err(LinkError::Lost("it exited".into())))).await;
    assert_eq!(detected.unwrap().era(), Era::Legacy);
    assert_eq!(sent[..4], ["connect", "server/discover", "close", "connect"]);
    assert!(
        run_detection(server(LinkKind::SingleStream, || Err(LinkError::Unreachable("no such program".into()))))
            .await
            .0
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn late_answer_to_fallback_handshake_answers_no_call() {
    // A server that answers discovery only after the second probe was sent.
    struct Late(ScriptedConnector, Arc<std::sync::Mutex<Vec<u64>>>, Arc<tokio::sync::Notify>);
    impl Connector for Late {
        fn connect<'a>(
            &'a self,
            unsolicited: Arc<dyn Listener>,
        ) -> futures_util::future::LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
            Box::pin(async move {
                let link = self.0.connect(unsolicited).await?;
                Ok(Arc::new(LateLink(link, Arc::clone(&self.1), Arc::clone(&self.2))) as Arc<dyn Link>)
            })
        }
        fn kind(&self) -> crate::link::LinkKind {
            self.0.kind()
        }
        fn describe(&self) -> String {
            String::new()
        }
    }
    struct LateLink(Arc<dyn Link>, Arc<std::sync::Mutex<Vec<u64>>>, Arc<tokio::sync::Notify>);
    impl Link for LateLink {
        fn request<'a>(
            &'a self,
            outgoing: &'a OutgoingRequest,
            listener: Arc<dyn Listener>,
        ) -> futures_util::future::LocalBoxFuture<'a, Result<Response, LinkError>> {
            self.1.lock().unwrap().push(outgoing.id);
            Box::pin(async move {
                if &*outgoing.method != "server/discover" {
                    // This answer arrives first, but does not determine the era.
                    self.2.notify_one();
                    return result(r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#);
                }
                self.2.notified().await;
                self.0.request(outgoing, listener).await
            })
        }
        fn send_initialized(&self) -> futures_util::future::LocalBoxFuture<'_, Result<(), LinkError>> {
            self.0.send_initialized()
        }
        fn complete_handshake(&self, negotiated: &NegotiatedSession) {
            self.0.complete_handshake(negotiated);
        }
        fn closed(&self) -> CancellationToken {
            self.0.closed()
        }
        fn close(&self) {
            self.0.close();
        }
    }
    let ids = Arc::default();
    let late = Late(server(LinkKind::SingleStream, || result(DISCOVER_RESULT)), Arc::clone(&ids), Arc::default());
    let detected = detect(Arc::new(late), listener()).await.unwrap();
    assert_eq!(detected.era(), Era::Modern);
    // Calls on this link get ids from 1, so a late error for `initialize` must not have such an id.
    let ids = ids.lock().unwrap().clone();
    assert_eq!(ids, [HANDSHAKE_ID, handshake::FALLBACK_HANDSHAKE_ID]);
    const { assert!(handshake::FALLBACK_HANDSHAKE_ID > 1 << 30) };
}

#[tokio::test(start_paused = true)]
async fn silent_server_is_of_handshake_era() {
    struct Silent(ScriptedConnector);
    impl Connector for Silent {
        fn connect<'a>(
            &'a self,
            unsolicited: Arc<dyn Listener>,
        ) -> futures_util::future::LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
            Box::pin(async move { Ok(Arc::new(SilentLink(self.0.connect(unsolicited).await?)) as Arc<dyn Link>) })
        }
        fn kind(&self) -> crate::link::LinkKind {
            self.0.kind()
        }
        fn describe(&self) -> String {
            String::new()
        }
    }
    struct SilentLink(Arc<dyn Link>);
    impl Link for SilentLink {
        fn request<'a>(
            &'a self,
            outgoing: &'a OutgoingRequest,
            listener: Arc<dyn Listener>,
        ) -> futures_util::future::LocalBoxFuture<'a, Result<Response, LinkError>> {
            if &*outgoing.method == "server/discover" {
                return Box::pin(std::future::pending());
            }
            self.0.request(outgoing, listener)
        }
        fn send_initialized(&self) -> futures_util::future::LocalBoxFuture<'_, Result<(), LinkError>> {
            self.0.send_initialized()
        }
        fn complete_handshake(&self, negotiated: &NegotiatedSession) {
            self.0.complete_handshake(negotiated);
        }
        fn closed(&self) -> CancellationToken {
            self.0.closed()
        }
        fn close(&self) {
            self.0.close();
        }
    }
    for kind in [LinkKind::Streams, LinkKind::SingleStream] {
        let silent = Silent(ScriptedConnector::new(kind, |_, _| result(INITIALIZE_RESULT)));
        assert_eq!(detect(Arc::new(silent), listener()).await.map(|found| found.era()).unwrap(), Era::Legacy);
        // Both probes remain unanswered.
        let dead = Silent(ScriptedConnector::new(kind, |_, _| Err(LinkError::Lost("x".into()))));
        assert!(detect(Arc::new(dead), listener()).await.is_err());
    }
}

#[tokio::test]
async fn discovery_is_repeated_after_stateless_error() {
    for (code, data) in [
        (-32022, Some(r#"{"supported":["2026-07-28"],"requested":"2026-07-28"}"#)),
        (-32022, None),
        (-32021, Some(r#"{"requiredCapabilities":{"roots":{}}}"#)),
        (-32020, None),
    ] {
        let discoveries = std::sync::atomic::AtomicU32::new(0);
        let (detected, sent) = run_detection(server(LinkKind::Streams, move || {
            if discoveries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
                error(code, data)
            } else {
                result(DISCOVER_RESULT)
            }
        }))
        .await;
        assert_eq!(detected.unwrap().era(), Era::Modern, "{code}");
        assert_eq!(sent, ["connect", "server/discover", "server/discover", "opened 2026-07-28"]);

        // The server is certainly modern, so there is no `initialize`.
        let (detected, sent) = run_detection(server(LinkKind::Streams, move || error(code, data))).await;
        assert!(matches!(detected, Err(LinkError::Protocol(_))), "{code}");
        assert_eq!(sent, ["connect", "server/discover", "server/discover", "close"]);
    }
}

#[tokio::test]
async fn supported_versions_determine_era() {
    let legacy = || error(-32022, Some(r#"{"supported":["2027-01-01","2025-11-25"],"requested":"2026-07-28"}"#));
    assert_eq!(run_detection(server(LinkKind::Streams, legacy)).await.0.unwrap().era(), Era::Legacy);
    let (detected, sent) =
        run_detection(server(LinkKind::Streams, || error(-32022, Some(r#"{"supported":["2027-01-01"]}"#)))).await;
    assert!(matches!(detected, Err(LinkError::Protocol(_))));
    assert_eq!(sent, ["connect", "server/discover", "close"]);
}

#[tokio::test]
async fn older_transport_is_tried_if_post_is_refused() {
    for (status, works) in [(400, true), (404, true), (405, true), (406, false), (422, false)] {
        let older =
            Arc::new(ScriptedConnector { legacy_only: true, ..server(LinkKind::Streams, || panic!("not asked")) });
        let refuses = ScriptedConnector::new(LinkKind::Streams, move |_, _| {
            Err(LinkError::Status { status, body: String::new() })
        });
        let (detected, _) = run_detection(ScriptedConnector { fallback: Some(older.clone()), ..refuses }).await;
        assert_eq!(detected.is_ok(), works, "{status}");
        assert_eq!(!older.sent_methods().is_empty(), works);
    }
    // A JSON error with such a status counts as well, and the first error is reported in the end.
    let refuses = ScriptedConnector::new(LinkKind::Streams, |_, _| {
        let Ok(Response::Error(error)) = error(-32000, None) else { unreachable!() };
        Ok(Response::Error(RpcError { status: Some(400), ..error }))
    });
    let neither =
        Arc::new(ScriptedConnector::new(LinkKind::Streams, |_, _| Err(LinkError::Unreachable("nothing here".into()))));
    let (detected, _) = run_detection(ScriptedConnector { fallback: Some(neither.clone()), ..refuses }).await;
    assert!(matches!(detected, Err(LinkError::Status { status: 400, .. })));
    assert!(!neither.sent_methods().is_empty());
}

#[tokio::test]
async fn transport_of_handshake_era_is_not_probed() {
    let only = ScriptedConnector { legacy_only: true, ..server(LinkKind::Streams, || panic!("not asked")) };
    assert_eq!(run_detection(only).await.0.unwrap().era(), Era::Legacy);
}

#[tokio::test]
async fn server_of_any_single_revision_is_detected() {
    for only in Revision::ALL {
        let date = only.as_str();
        let supported = move || error(-32022, Some(&format!(r#"{{"supported":["{date}"]}}"#)));
        let strict = ScriptedConnector::new(LinkKind::Streams, move |method, outgoing| {
            let names_revision = std::str::from_utf8(&outgoing.body).unwrap().contains(date);
            match (method, only.era()) {
                ("server/discover", Era::Legacy) => error(-32601, None),
                ("server/discover" | "initialize", _) if !names_revision => supported(),
                ("server/discover", Era::Modern) => result(&format!(
                    r#"{{"resultType":"complete","supportedVersions":["{date}"],"capabilities":{{}}}}"#
                )),
                ("initialize", Era::Legacy) => {
                    result(&format!(r#"{{"protocolVersion":"{date}","capabilities":{{}},"serverInfo":{{}}}}"#))
                }
                other => panic!("{other:?}"),
            }
        });
        let detected = run_detection(strict).await.0.unwrap();
        assert_eq!((detected.era(), detected.negotiated.revision), (only.era(), only));
    }
}

#[test]
fn refusals_of_other_era_are_recognized() {
    for (era, status, code, is_doubted) in [
        (Era::Modern, Some(400), Some(-32000), true),
        (Era::Modern, Some(400), Some(-32600), true),
        (Era::Modern, Some(422), None, true),
        (Era::Modern, Some(400), Some(-32602), false),
        (Era::Modern, Some(400), Some(-32021), false),
        (Era::Modern, Some(400), Some(-32022), true),
        (Era::Modern, Some(200), Some(-32000), false),
        (Era::Modern, None, Some(-32000), false),
        (Era::Modern, Some(503), None, false),
        (Era::Legacy, Some(400), Some(-32020), true),
        (Era::Legacy, Some(200), Some(-32020), false),
        (Era::Legacy, Some(400), Some(-32602), false),
        (Era::Legacy, Some(400), None, false),
    ] {
        assert_eq!(may_be_other_era(era, status, code), is_doubted, "{era:?} {status:?} {code:?}");
    }
    for status in [401, 403, 404, 408, 413, 429] {
        assert!(!may_be_other_era(Era::Modern, Some(status), None), "{status}");
    }
    assert!(
        may_lack_meta(Era::Legacy, Some(400), Some(-32602)) && !may_lack_meta(Era::Legacy, Some(200), Some(-32602))
    );
    assert!(!may_lack_meta(Era::Modern, Some(400), Some(-32602)));
}
