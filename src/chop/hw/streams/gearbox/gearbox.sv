// Changes the number of lanes of a stream; elements keep their order.
// Latency 1 cycle after the last element of an output beat has come; the narrower side runs at
// 1 beat per cycle.
`default_nettype none

module gearbox #(
    parameter int DATA_IN_0_PRECISION_0        = 8,  // bits of one element, 1 or more
    parameter int DATA_IN_0_PARALLELISM_DIM_0  = 2,  // elements per input beat, 1 or more
    parameter int DATA_OUT_0_PARALLELISM_DIM_0 = 4,  // elements per output beat, 1 or more
    parameter int UNIT                         = 2   // elements moved together: divides both
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_OUT_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || DATA_IN_0_PARALLELISM_DIM_0 < 1
      || DATA_OUT_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("gearbox: width and lanes must be 1 or more, got %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, DATA_IN_0_PARALLELISM_DIM_0, DATA_OUT_0_PARALLELISM_DIM_0);
  end
  if (UNIT < 1 || DATA_IN_0_PARALLELISM_DIM_0 % UNIT != 0
      || DATA_OUT_0_PARALLELISM_DIM_0 % UNIT != 0) begin : g_refuse_unit
    $error("gearbox: UNIT must divide both parallelisms, got %0d of %0d and %0d",
           UNIT, DATA_IN_0_PARALLELISM_DIM_0, DATA_OUT_0_PARALLELISM_DIM_0);
  end
`endif

  localparam int UNIT_WIDTH = UNIT * DATA_IN_0_PRECISION_0;
  localparam int IN_UNITS = DATA_IN_0_PARALLELISM_DIM_0 / UNIT;
  localparam int OUT_UNITS = DATA_OUT_0_PARALLELISM_DIM_0 / UNIT;
  // While one beat leaves another one arrives; uneven ratios also need the leftover of the last.
  localparam bit IS_EVEN = IN_UNITS % OUT_UNITS == 0 || OUT_UNITS % IN_UNITS == 0;
  localparam int CAPACITY = IN_UNITS + OUT_UNITS + (IS_EVEN ? 0 : IN_UNITS);
  localparam int COUNT_WIDTH = $clog2(CAPACITY + 1);

  logic [CAPACITY*UNIT_WIDTH-1:0] units_q, units_shifted, units_next;
  logic [COUNT_WIDTH-1:0] count_q, count_left;
  logic push, pop;

  assign data_in_0_ready  = count_q <= COUNT_WIDTH'(CAPACITY - IN_UNITS);
  assign data_out_0_valid = count_q >= COUNT_WIDTH'(OUT_UNITS);
  assign data_out_0       = units_q[OUT_UNITS*UNIT_WIDTH-1:0];
  assign push             = data_in_0_valid && data_in_0_ready;
  assign pop              = data_out_0_valid && data_out_0_ready;
  assign units_shifted    = pop ? units_q >> (OUT_UNITS * UNIT_WIDTH) : units_q;
  assign count_left       = pop ? count_q - COUNT_WIDTH'(OUT_UNITS) : count_q;

  // The arriving beat lands right after the units that stay.
  for (genvar slot = 0; slot < CAPACITY; slot++) begin : g_slot
    always_comb begin
      units_next[slot*UNIT_WIDTH+:UNIT_WIDTH] = units_shifted[slot*UNIT_WIDTH+:UNIT_WIDTH];
      for (int unit = 0; unit < IN_UNITS; unit++) begin
        if (unit <= slot && count_left == COUNT_WIDTH'(slot - unit)) begin
          units_next[slot*UNIT_WIDTH+:UNIT_WIDTH] = data_in_0[unit*UNIT_WIDTH+:UNIT_WIDTH];
        end
      end
    end
  end

  always_ff @(posedge clk) begin
    if (push || pop) units_q <= units_next;
    count_q <= push ? count_left + COUNT_WIDTH'(IN_UNITS) : count_left;
    if (rst) count_q <= '0;
  end

endmodule

`default_nettype wire
