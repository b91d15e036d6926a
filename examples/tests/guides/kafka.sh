# Stands in for Docker: the broker is the one for tests, and the tools are those of its libraries.
docker() {
  [ "$1" = exec ] || return 0
  local class
  case "$3" in
    */kafka-topics.sh) class=org.apache.kafka.tools.TopicCommand ;;
    */kafka-console-consumer.sh) class=org.apache.kafka.tools.consumer.ConsoleConsumer ;;
  esac
  java -cp "$LIBRARIES/*" "$class" "${@:4}"
}
finish() {
  docker exec kafka /opt/kafka/bin/kafka-topics.sh --bootstrap-server "$SERVER" --delete --topic "$TOPIC"
}
