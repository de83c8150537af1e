//! Carries bytes between an agent and the gateway. Only whole lines are written to stdout, so that a gateway that dies in
//! the middle of a message leaves no partial line.

use std::{future::Future, io, time::Duration};

use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// The time within which answers are still forwarded after the end of stdin, so that the process ends within a second
/// after its client.
pub const DRAIN_TIMEOUT: Duration = Duration::from_millis(700);

/// Maximum bytes of a line from the gateway. It is far above all limits on messages, so a longer line is a fault.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// The reason why a connection ended.
#[derive(Debug)]
pub enum ProxyOutcome {
    /// stdin ended or `terminate` was ready, and finished answers were written.
    Done,
    /// The reader of stdout is gone.
    OutputClosed,
    /// The gateway closed the connection before the agent did.
    GatewayGone,
    /// Reading stdin or writing stdout failed.
    Failed(io::Error),
}

/// Forwards lines until one side ends or `terminate` is ready.
///
/// At the end of stdin, and on `terminate`, the gateway's input is closed, and everything that it still sends within
/// [`DRAIN_TIMEOUT`] is written.
pub async fn run<I, O, R, W>(
    input: I,
    output: O,
    gateway_read: R,
    gateway_write: W,
    terminate: impl Future<Output = ()>,
) -> ProxyOutcome
where
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let download = download(gateway_read, output);
    tokio::pin!(download);
    let mut upload = Box::pin(upload(input, gateway_write));
    tokio::pin!(terminate);
    let writer = tokio::select! {
        ended = &mut download => return ended,
        (writer, result) = &mut upload => match result {
            Ok(()) => Some(writer),
            Err(UploadError::Input(error)) => return ProxyOutcome::Failed(error),
            // The gateway stopped reading; its remaining output is still forwarded.
            Err(UploadError::Gateway) => {
                return match timeout(DRAIN_TIMEOUT, &mut download).await {
                    Ok(ended) => ended,
                    Err(_) => ProxyOutcome::GatewayGone,
                };
            }
        },
        () = &mut terminate => None,
    };
    match writer {
        Some(mut writer) => {
            let _ = writer.shutdown().await;
            match timeout(DRAIN_TIMEOUT, download).await {
                Ok(ProxyOutcome::Failed(error)) => ProxyOutcome::Failed(error),
                Ok(ProxyOutcome::OutputClosed) => ProxyOutcome::OutputClosed,
                // The gateway closes after its answers; unfinished answers are abandoned.
                Ok(ProxyOutcome::Done | ProxyOutcome::GatewayGone) | Err(_) => ProxyOutcome::Done,
            }
        }
        // After termination, further input of the agent is ignored. Dropping the write half closes the gateway's input.
        None => {
            drop(upload);
            let _ = timeout(DRAIN_TIMEOUT, download).await;
            ProxyOutcome::Done
        }
    }
}

enum UploadError {
    Input(io::Error),
    Gateway,
}

async fn upload<I, W>(mut input: I, mut gateway: W) -> (W, Result<(), UploadError>)
where
    I: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; 64 << 10];
    let result = loop {
        match input.read(&mut buffer).await {
            Ok(0) => break Ok(()),
            Ok(count) => {
                let sent = gateway.write_all(buffer.get(..count).unwrap_or_default()).await;
                if sent.is_err() {
                    break Err(UploadError::Gateway);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(UploadError::Input(error)),
        }
    };
    (gateway, result)
}

async fn download<R, O>(mut gateway: R, mut output: O) -> ProxyOutcome
where
    R: AsyncBufRead + Unpin,
    O: AsyncWrite + Unpin,
{
    let mut line = Vec::new();
    loop {
        line.clear();
        // Large lines must not keep their memory for the lifetime of the session.
        line.shrink_to(1 << 20);
        let read = (&mut gateway).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await;
        if read.is_err() || line.last() != Some(&b'\n') {
            return ProxyOutcome::GatewayGone;
        }
        let written = async {
            output.write_all(&line).await?;
            output.flush().await
        };
        match written.await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return ProxyOutcome::OutputClosed,
            Err(error) => return ProxyOutcome::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

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

    async fn run_proxy(input: &[u8]) -> (ProxyOutcome, Vec<u8>) {
        let (near, far) = duplex(4096);
        let (read, write) = split(near);
        let mut output = Vec::new();
        let (outcome, ()) = tokio::join!(run(input, &mut output, BufReader::new(read), write, pending()), echo(far));
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
        let (read, write) = split(near);
        let mut output = Vec::new();
        far.write_all(b"{\"whole\":1}\n{\"ha").await.unwrap();
        drop(far);
        let (input, _open) = duplex(64);
        let ended = run(input, &mut output, BufReader::new(read), write, pending()).await;
        assert!(matches!(ended, ProxyOutcome::GatewayGone), "{ended:?}");
        assert_eq!(output, b"{\"whole\":1}\n");
    }

    #[tokio::test]
    async fn terminate_closes_gateway_input() {
        let (near, mut far) = duplex(4096);
        let (read, write) = split(near);
        let mut output = Vec::new();
        far.write_all(b"answer\n").await.unwrap();
        let (input, _open) = duplex(64);
        let terminate = async {};
        let ended = run(input, &mut output, BufReader::new(read), write, terminate).await;
        assert!(matches!(ended, ProxyOutcome::Done), "{ended:?}");
        assert_eq!(output, b"answer\n", "finished answers are flushed");
        let mut rest = Vec::new();
        assert_eq!(far.read_to_end(&mut rest).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn closed_stdout_ends_proxy() {
        let (near, mut far) = duplex(4096);
        let (read, write) = split(near);
        far.write_all(b"answer\n").await.unwrap();
        let (output, gone) = duplex(1);
        drop(gone);
        let (input, _open) = duplex(64);
        let ended = run(input, output, BufReader::new(read), write, pending()).await;
        assert!(matches!(ended, ProxyOutcome::OutputClosed), "{ended:?}");
    }
}
