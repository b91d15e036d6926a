# Stands in for Docker: a node of the guide's own, with the plugin that `rabbitmqadmin` talks to.
# Settings of the machine's own node do not count.
docker() {
  [ "$1" = run ] || return 0
  mkdir node
  echo '[rabbitmq_management].' > node/enabled_plugins
  cat > node/rabbitmq.conf <<CONF
listeners.tcp.1 = 127.0.0.1:$PORT
management.tcp.ip = 127.0.0.1
management.tcp.port = $PORT_MANAGEMENT
CONF
  export ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT=$PORT_EPMD HOME=$PWD/node
  epmd &
  RABBITMQ_CONFIG_FILE=$HOME/rabbitmq.conf RABBITMQ_CONF_ENV_FILE=/dev/null \
    RABBITMQ_DIST_PORT=$PORT_NODE RABBITMQ_ENABLED_PLUGINS_FILE=$HOME/enabled_plugins \
    RABBITMQ_LOG_BASE=$HOME/logs RABBITMQ_MNESIA_BASE=$HOME/data RABBITMQ_NODENAME=guide@localhost \
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}' \
    RUNNING_UNDER_SYSTEMD=true /usr/lib/rabbitmq/bin/rabbitmq-server > node/log 2>&1 &
}
rabbitmqadmin() {
  command rabbitmqadmin --port="$PORT_MANAGEMENT" "$@"
}
