use tokio::io::{BufReader, DuplexStream, duplex, split};

use super::*;

/// A gateway that echoes each line, and closes at the end of its input.
async fn echo(gateway: DuplexStream) {
    let (read, mut write) = split(gateway);
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    while read.read_until(b'\n', &mut line).await.unwrap() > 0 {
        write.write_all(&line).await.unwrap();
        line.clear();
    }
    write.shutdown().await.unwrap();
}

type Half = (tokio::io::ReadHalf<DuplexStream>, tokio::io::WriteHalf<DuplexStream>);
type TestConnection =
    GatewayConnection<BufReader<tokio::io::ReadHalf<DuplexStream>>, tokio::io::WriteHalf<DuplexStream>>;

fn connection((read, writer): Half) -> TestConnection {
    GatewayConnection { reader: BufReader::new(read), writer, is_detached: true }
}

/// Finds no other gateway.
async fn no_gateway(_may_start: bool) -> Result<Option<TestConnection>, AttachError> {
    Err(AttachError::Refused("no gateway".to_owned()))
}

async fn run_proxy(input: &[u8]) -> (ProxyOutcome, Vec<u8>) {
    let (near, far) = duplex(4096);
    let mut output = Vec::new();
    let proxy = run(input, &mut output, connection(split(near)), no_gateway, pending());
    let (outcome, ()) = tokio::join!(proxy, echo(far));
    (outcome, output)
}

#[tokio::test]
async fn lines_of_all_sizes_pass_through() {
    for size in [0, 1, 64 << 10, 8 << 20] {
        let mut input = Vec::new();
        for _ in 0..3 {
            input.extend(std::iter::repeat_n(b'x', size));
            input.push(b'\n');
        }
        let (ended, output) = run_proxy(&input).await;
        assert!(matches!(ended, ProxyOutcome::Done), "{ended:?}");
        assert!(output == input, "{} of {} bytes", output.len(), input.len());
    }
}

#[tokio::test]
async fn partial_line_never_reaches_stdout() {
    let (near, mut far) = duplex(4096);
    let mut output = Vec::new();
    far.write_all(b"{\"whole\":1}\n{\"ha").await.unwrap();
    drop(far);
    let (input, _open) = duplex(64);
    let ended = run(input, &mut output, connection(split(near)), no_gateway, pending()).await;
    assert!(matches!(ended, ProxyOutcome::NoGateway(_)), "{ended:?}");
    assert_eq!(output, b"{\"whole\":1}\n");
}

#[tokio::test]
async fn terminate_closes_gateway_input() {
    let (near, mut far) = duplex(4096);
    let mut output = Vec::new();
    far.write_all(b"answer\n").await.unwrap();
    let (input, _open) = duplex(64);
    let terminate = async {};
    let ended = run(input, &mut output, connection(split(near)), no_gateway, terminate).await;
    assert!(matches!(ended, ProxyOutcome::Done), "{ended:?}");
    assert_eq!(output, b"answer\n", "finished answers are flushed");
    let mut rest = Vec::new();
    assert_eq!(far.read_to_end(&mut rest).await.unwrap(), 0);
}

#[tokio::test]
async fn closed_stdout_ends_proxy() {
    let (near, mut far) = duplex(4096);
    far.write_all(b"answer\n").await.unwrap();
    let (output, gone) = duplex(1);
    drop(gone);
    let (input, _open) = duplex(64);
    let ended = run(input, output, connection(split(near)), no_gateway, pending()).await;
    assert!(matches!(ended, ProxyOutcome::OutputClosed), "{ended:?}");
}

#[tokio::test]
async fn session_continues_with_next_gateway() {
    let (agent, mut input) = duplex(4096);
    let (agent_read, _agent_write) = split(agent);
    let (output, agent_output) = duplex(4096);
    let mut agent_output = BufReader::new(agent_output);
    let (near, mut far) = duplex(4096);
    let (next_near, next_far) = duplex(4096);
    let mut next = Some(next_near);
    let connect = async |_| Ok(next.take().map(|near| connection(split(near))));
    let proxy = run(agent_read, output, connection(split(near)), connect, pending());
    let client = async {
        let mut next_far = BufReader::new(next_far);
        let mut line = String::new();
        input.write_all(b"{\"id\":1,\"method\":\"initialize\",\"params\":{}}\n").await.unwrap();
        let mut far_reader = BufReader::new(&mut far);
        far_reader.read_line(&mut line).await.unwrap();
        assert!(line.contains("initialize"), "{line}");
        far.write_all(b"{\"id\":1,\"result\":{\"protocolVersion\":\"2025-11-25\"}}\n").await.unwrap();
        line.clear();
        agent_output.read_line(&mut line).await.unwrap();
        input.write_all(b"{\"method\":\"notifications/initialized\"}\n").await.unwrap();
        input.write_all(b"{\"id\":2,\"method\":\"tools/call\",\"params\":{\"name\":\"write\"}}\n").await.unwrap();
        let mut far_reader = BufReader::new(&mut far);
        for _ in 0..2 {
            far_reader.read_line(&mut line).await.unwrap();
        }
        drop(far);
        line.clear();
        agent_output.read_line(&mut line).await.unwrap();
        assert!(line.contains("OUTCOME_UNKNOWN"), "{line}");
        input.write_all(b"{\"id\":3,\"method\":\"ping\"}\n").await.unwrap();
        line.clear();
        next_far.read_line(&mut line).await.unwrap();
        assert!(line.contains("countersign-replay-initialize"), "{line}");
        next_far.write_all(b"{\"id\":\"countersign-replay-initialize\",\"result\":{}}\n").await.unwrap();
        line.clear();
        for _ in 0..2 {
            next_far.read_line(&mut line).await.unwrap();
        }
        assert!(line.contains("initialized") && line.ends_with("{\"id\":3,\"method\":\"ping\"}\n"), "{line}");
        next_far.write_all(b"{\"id\":3,\"result\":{}}\n").await.unwrap();
        line.clear();
        agent_output.read_line(&mut line).await.unwrap();
        assert_eq!(line, "{\"id\":3,\"result\":{}}\n");
        drop(input);
    };
    let (ended, ()) = tokio::join!(proxy, client);
    assert!(matches!(ended, ProxyOutcome::Done), "{ended:?}");
}

/// Lets the next gateway accept a session and never answer. Returns how the proxy ends, and after how many seconds.
async fn run_with_silent_next_gateway(closes_input: bool) -> (ProxyOutcome, u64) {
    let (agent, mut input) = duplex(4096);
    let (agent_read, _agent_write) = split(agent);
    let (near, far) = duplex(4096);
    let (next_near, next_far) = duplex(4096);
    let mut next = Some(next_near);
    let connect = async |_| Ok(next.take().map(|near| connection(split(near))));
    let mut output = Vec::new();
    let proxy = run(agent_read, &mut output, connection(split(near)), connect, pending());
    let client = async {
        let (mut far, mut next_far) = (BufReader::new(far), BufReader::new(next_far));
        let mut line = String::new();
        input.write_all(b"{\"id\":1,\"method\":\"initialize\",\"params\":{}}\n").await.unwrap();
        far.read_line(&mut line).await.unwrap();
        far.write_all(b"{\"id\":1,\"result\":{\"protocolVersion\":\"2025-11-25\"}}\n").await.unwrap();
        drop(far);
        line.clear();
        next_far.read_line(&mut line).await.unwrap();
        assert!(line.contains("countersign-replay-initialize"), "{line}");
        input.write_all(b"{\"id\":2,\"method\":\"ping\"}\n").await.unwrap();
        // The halves that are returned stay open.
        (next_far, (!closes_input).then_some(input), tokio::time::Instant::now())
    };
    let both = async { tokio::join!(proxy, client) };
    let (ended, (_next_far, _input, last_input_at)) =
        timeout(Duration::from_secs(60), both).await.expect("the proxy ends");
    (ended, last_input_at.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn end_of_stdin_is_noticed_before_session_is_resumed() {
    let (ended, seconds) = run_with_silent_next_gateway(true).await;
    assert!(matches!(ended, ProxyOutcome::Done) && seconds < 1, "{ended:?} after {seconds}s");
}

#[tokio::test(start_paused = true)]
async fn gateway_that_never_resumes_session_ends_proxy() {
    let (ended, seconds) = run_with_silent_next_gateway(false).await;
    let is_refused = matches!(ended, ProxyOutcome::NoGateway(AttachError::NotResumed(_)));
    assert!(is_refused && seconds == RESUME_TIMEOUT.as_secs(), "{ended:?} after {seconds}s");
}
