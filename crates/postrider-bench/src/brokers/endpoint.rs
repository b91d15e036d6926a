//! An HTTP endpoint that answers 204 to everything, at once.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::Outcome;

/// Starts it. It ends with the program.
pub(super) async fn start() -> Outcome<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/events", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(serve(connection));
        }
    });
    Ok(url)
}

async fn serve(connection: TcpStream) -> Outcome<()> {
    connection.set_nodelay(true)?;
    let mut connection = BufReader::new(connection);
    let mut line = String::new();
    loop {
        let mut body_bytes = 0;
        loop {
            line.clear();
            if connection.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            match line.trim_end().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    body_bytes = value.trim().parse()?;
                }
                _ if line.trim_end().is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; body_bytes];
        connection.read_exact(&mut body).await?;
        connection.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await?;
    }
}
