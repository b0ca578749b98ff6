-- Return one SCAN step of the locks on this master.
-- ARGV[1] SCAN cursor, ARGV[2] pattern of the locks' keys
-- Returns the next cursor ("0" at the end) and a list of {key, value, milliseconds left}.
local step = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 1000, 'TYPE', 'string')
local found = {}
for _, key in ipairs(step[2]) do
  found[#found + 1] = {key, redis.call('GET', key), redis.call('PTTL', key)}
end
return {step[1], found}
