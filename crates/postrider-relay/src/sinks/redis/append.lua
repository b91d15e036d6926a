-- Appends messages to streams, in their order and each unless its id is remembered, and stops at
-- the first one that fails. Answers how many are in their streams; if that is not all, also a key
-- and what is wrong with it. Without messages it changes nothing, and looks whether it could.
--
-- Everything but appending comes first: an entry whose id cannot be remembered would be appended
-- again by every retry.
--
-- KEYS: for each stream its name, and those of its newer and older ids.
-- ARGV: settings; for each shape of an entry the number of its stream, how many fields it has and
-- their names; for each stream how many messages it gets, and their ids; for each message its
-- shape and the values of its fields.

local ids_max, ids_seconds, if_missing = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local trim, trim_to = ARGV[4], ARGV[5]
local shape_count, message_count = tonumber(ARGV[6]), tonumber(ARGV[7])
local at = 8

local streams = {}
for key = 1, #KEYS, 3 do
  streams[#streams + 1] =
    {name = KEYS[key], newer = KEYS[key + 1], older = KEYS[key + 2], done = 0}
end

local shapes = {}
for number = 1, shape_count do
  local stream, fields = streams[tonumber(ARGV[at])], tonumber(ARGV[at + 1])
  local command = {'XADD', stream.name}
  if if_missing ~= '' then command[3] = if_missing end
  command[#command + 1] = '*'
  local first = #command + 2
  for field = 1, fields do
    command[#command + 1] = ARGV[at + 1 + field]
    command[#command + 1] = ''
  end
  shapes[tostring(number)] =
    {stream = stream, fields = fields, command = command, first = first, size = #command}
  at = at + 2 + fields
end

if trim == 'MINID' then
  trim_to = string.format('%.0f', math.max(redis.call('TIME')[1] * 1000 - trim_to, 0))
end

-- The first command that the user may not use, if the server can tell: from Redis 7 on.
local function forbidden(stream)
  if not redis.acl_check_cmd then return nil end
  local commands = {
    {'EXPIRE', stream.newer, ids_seconds}, {'RENAME', stream.newer, stream.older},
    {'SADD', stream.newer, ''}, {'SCARD', stream.newer}, {'SMISMEMBER', stream.newer, ''},
    {'SMISMEMBER', stream.older, ''}, {'UNLINK', stream.older},
    {'XADD', stream.name, '*', 'payload', ''},
  }
  if trim ~= '' then commands[#commands + 1] = {'XTRIM', stream.name, trim, '~', trim_to} end
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then
      return {0, command[2], 'NOPERM the user may not use ' .. command[1] .. ' on ' .. command[2]}
    end
  end
end

local failed = nil
-- Runs a command, unless one has failed before.
local function try(key, ...)
  if failed then return nil end
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then failed = {0, key, answer.err} end
  return answer
end

for _, stream in ipairs(streams) do
  local name, newer, older = stream.name, stream.newer, stream.older
  local count = tonumber(ARGV[at])
  stream.count, stream.ids_at = count, at + 1
  at = at + 1 + count
  if message_count == 0 then
    failed = failed or forbidden(stream)
  elseif count > 0 then
    stream.is_newer = try(newer, 'SMISMEMBER', newer, unpack(ARGV, stream.ids_at, at - 1))
    stream.is_older = try(older, 'SMISMEMBER', older, unpack(ARGV, stream.ids_at, at - 1))
    local known = try(newer, 'SCARD', newer)
    if not failed and known > ids_max then
      try(older, 'UNLINK', older)
      try(older, 'RENAME', newer, older)
    end
    -- No event has this id: it shows that ids can be added, and is not counted.
    try(newer, 'SADD', newer, '')
    -- WAIT has a write to wait for, even if all ids are known.
    try(newer, 'EXPIRE', newer, ids_seconds)
    if trim ~= '' then try(name, 'XTRIM', name, trim, '~', trim_to) end
  end
end
if failed then return failed end

local argv, call, unpack, type = ARGV, redis.pcall, unpack, type
for message = 1, message_count do
  local shape = shapes[argv[at]]
  local stream, fields = shape.stream, shape.fields
  local number = stream.done + 1
  if stream.is_newer[number] == 0 and stream.is_older[number] == 0 then
    local command, place = shape.command, shape.first
    for value = at + 1, at + fields do
      command[place] = argv[value]
      place = place + 2
    end
    local entry = call(unpack(command, 1, shape.size))
    if not entry then
      failed = {message - 1, stream.name, 'NOSTREAM'}
      break
    elseif type(entry) == 'table' then
      failed = {message - 1, stream.name, entry.err}
      break
    end
  end
  stream.done = number
  at = at + 1 + fields
end

for _, stream in ipairs(streams) do
  if stream.done > 0 then
    -- Those that were known, too: they stay known.
    redis.call('SADD', stream.newer, unpack(ARGV, stream.ids_at, stream.ids_at + stream.done - 1))
  elseif stream.count > 0 and redis.call('SCARD', stream.newer) == 1 then
    -- Nothing is left of a stream that is not there.
    redis.pcall('UNLINK', stream.newer)
  end
end
return failed or message_count
