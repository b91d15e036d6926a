-- Appends messages to streams, in their order and each unless its id is remembered, and stops at
-- the first one that fails. Answers how many are in their streams; if that is not all, also a key
-- and what is wrong with it.
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
-- What can fail for a stream as a whole comes before anything is written to it.
for _, stream in ipairs(streams) do
  local count = tonumber(ARGV[at])
  stream.ids_at = at + 1
  at = at + 1 + count
  if count > 0 then
    stream.is_newer = redis.pcall('SMISMEMBER', stream.newer, unpack(ARGV, stream.ids_at, at - 1))
    if stream.is_newer.err then return {0, stream.newer, stream.is_newer.err} end
    stream.is_older = redis.pcall('SMISMEMBER', stream.older, unpack(ARGV, stream.ids_at, at - 1))
    if stream.is_older.err then return {0, stream.older, stream.is_older.err} end
  end
  if trim ~= '' and count > 0 then
    local trimmed = redis.pcall('XTRIM', stream.name, trim, '~', trim_to)
    if type(trimmed) == 'table' then return {0, stream.name, trimmed.err} end
  end
end

local argv, call, unpack, type = ARGV, redis.pcall, unpack, type
local failed = nil
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
    -- Those that were known, too: they stay known, and WAIT has a write to wait for.
    redis.call('SADD', stream.newer, unpack(ARGV, stream.ids_at, stream.ids_at + stream.done - 1))
    redis.call('EXPIRE', stream.newer, ids_seconds)
    if redis.call('SCARD', stream.newer) >= ids_max then
      redis.call('UNLINK', stream.older)
      redis.call('RENAME', stream.newer, stream.older)
    end
  end
end
return failed or message_count
