fn main() {
    let _ = postrider::events![];
}
